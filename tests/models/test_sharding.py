"""Tensor and data parallelism: the same tokens as one device, each device with its part."""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from specjax.models.sharding import constrain, mesh_of, partition, weight_shardings

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module", params=("", pytest.param("--full", marks=pytest.mark.slow)))
def results(request):
    program = [sys.executable, "-m", "tests.models.sharded", request.param]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tokens_are_those_of_one_device(results):
    assert results[0]["mesh"] == {"data": 2, "model": 2}
    for result in results:
        assert all(result["equal"].values())
        assert result["drafted"] > 0
        assert result["compiles"] == 0


def test_arrays_lie_where_the_rules_say(results):
    for result in results:
        two_axes = "data" in result["mesh"]
        # Two key heads are split over two devices, and replicated over four.
        heads = "model" if two_axes else None
        assert result["weights"] == {
            "qkv": [heads, None, None],
            "qkv_bias": [heads, None],
            "out": [None, heads, None],
            "gate_up": ["model", None, None, None],
            "down": [None, "model", None],
            "input_norm": [None],
        }
        assert result["cache"] == (["data", "model"] if two_axes else [])


@pytest.mark.parametrize(
    "axes, shape, expected",
    (
        (("data", "model"), (4, 8), ("data", "model")),
        (("data", "model"), (3, 8), (None, "model")),
        (("model", None), (12, 5), ("model", None)),
        (("model", None), (9, 5), (None, None)),
        (("pipe", None), (4, 4), (None, None)),
    ),
)
def test_what_does_not_divide_is_replicated(axes, shape, expected):
    mesh = AbstractMesh((2, 4), ("data", "model"))
    assert partition(axes, shape, mesh) == PartitionSpec(*expected)


def test_without_a_mesh_nothing_is_constrained():
    x = jnp.ones((2, 4))
    assert constrain(x, ("data", "model")) is x
    assert mesh_of({"x": x}) is None


def test_weights_on_two_meshes_are_refused():
    devices = np.array(jax.devices()[:1])
    placed = [
        jax.device_put(jnp.ones(2), NamedSharding(Mesh(devices, (name,)), PartitionSpec()))
        for name in ("data", "model")
    ]
    with pytest.raises(ValueError, match="several meshes"):
        mesh_of(placed)


def test_modules_of_others_are_replicated():
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    weights = {"kernel": jnp.ones((4, 4)), "down": jnp.ones((2, 2)), "head": jnp.ones((4, 2))}
    specs = {name: sharding.spec for name, sharding in weight_shardings(weights, mesh).items()}
    assert specs == {
        "kernel": PartitionSpec(None, None),
        "down": PartitionSpec(None, None),
        "head": PartitionSpec("model", None),
    }
