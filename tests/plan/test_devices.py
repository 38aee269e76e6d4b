"""Names of devices, their published figures and what is said where one cannot be planned for."""

from __future__ import annotations

import importlib.util

import jax
import pytest

from specjax.plan.devices import DEVICES, describe, placement


@pytest.mark.parametrize("name", ["v5e:2x4", "v6e:2x2", "v5p:2x2x1", "h200", "cpu"])
def test_known_devices(name):
    device = describe(name)
    assert device is DEVICES[name.split(":")[0]]
    assert device.source


def test_figures_have_the_order_of_what_is_sold():
    """A wrong unit is a factor of a thousand."""
    for device in DEVICES.values():
        if device.kind != "cpu":
            assert 1e10 < device.memory_bytes < 1e12
            assert 5e11 < device.bandwidth < 1e13
            assert 1e14 < device.peak_flops < 1e16
            assert 1e11 < device.link_bandwidth < device.bandwidth


@pytest.mark.parametrize("name", ["v4:2x2", "v5e", "h200:2", "cpu:1x1", "", "a100"])
def test_unknown_devices_are_refused(name):
    with pytest.raises(ValueError, match=f"device is '{name}'; expected h200, cpu, or a TPU"):
        describe(name)


@pytest.mark.parametrize("name", ["v5e:0x0", "v5e:2x0", "v6e:0x2", "v5p:2x0x1", "v5e:00x2"])
def test_topologies_without_a_chip_are_refused(name):
    with pytest.raises(ValueError, match=f"device is '{name}'; expected"):
        describe(name)


@pytest.mark.parametrize("name, dimensions", [("v5e:2x2x1", 2), ("v6e:1x2x2", 2), ("v5p:2x2", 3)])
def test_dimensions_that_a_generation_does_not_have_are_refused(name, dimensions):
    with pytest.raises(ValueError, match=f"device is '{name}'; expected {dimensions} dimensions"):
        describe(name)


def test_a_mesh_has_axes_that_something_is_split_over():
    with pytest.raises(ValueError, match="mesh has the axes model, foo; expected data, model or both"):
        placement("cpu", {"model": 1, "foo": 1})


@pytest.mark.parametrize("name, extra", [("v5e:2x2", "tpu"), ("h200", "cuda-compiler")])
def test_a_missing_compiler_says_what_to_install(name, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ImportError, match=rf"pip install 'specjax\[{extra}\]'"):
        placement(name, {})


def test_a_mesh_has_no_more_devices_than_there_are():
    count = len(jax.devices("cpu"))
    assert placement("cpu", {}).mesh is None
    assert placement("cpu", {"model": 1}).mesh.shape == {"model": 1}
    with pytest.raises(ValueError, match=f"of {count + 1} devices; cpu has {count}"):
        placement("cpu", {"model": count + 1})
