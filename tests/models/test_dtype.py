from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import dtype as dtype_module
from specjax.models.dtype import resolve_dtype


@pytest.fixture
def probe(monkeypatch):
    """Replaces the measurement; returns the seconds of each dtype, to be filled in, and the list of calls."""
    seconds, calls = {}, []

    def measured(dtype, backend):
        calls.append((dtype.name, backend))
        return seconds[dtype.name]

    monkeypatch.setattr(dtype_module, "_seconds", measured)
    dtype_module._faster_dtype.cache_clear()
    yield seconds, calls
    dtype_module._faster_dtype.cache_clear()


@pytest.mark.parametrize("spelling", ["float32", np.float32, jnp.float32, np.dtype("float32")])
def test_float32(spelling):
    assert resolve_dtype(spelling) == jnp.float32


@pytest.mark.parametrize("spelling", ["bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")])
def test_bfloat16(spelling):
    assert resolve_dtype(spelling) == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float16", "int8", "float64", "fp32", "AUTO", np.int32, 7])
def test_anything_else_is_refused_by_name(dtype):
    name = getattr(dtype, "__name__", str(dtype))
    with pytest.raises(ValueError, match=rf"dtype=.*{name}.*'auto', 'float32', 'bfloat16'"):
        resolve_dtype(dtype)


@pytest.mark.parametrize(
    "bfloat16, float32, expected",
    [(0.5, 1.0, "bfloat16"), (1.0, 1.0, "bfloat16"), (1.1, 1.0, "bfloat16"), (13.0, 1.0, "float32")],
)
def test_auto_takes_bfloat16_unless_it_is_clearly_slower(probe, bfloat16, float32, expected):
    seconds, _ = probe
    seconds |= {"bfloat16": bfloat16, "float32": float32}
    assert resolve_dtype("auto").name == expected


def test_auto_probes_once(probe):
    seconds, calls = probe
    seconds |= {"bfloat16": 1.0, "float32": 1.0}
    resolve_dtype("auto")
    resolve_dtype()
    assert sorted(name for name, _ in calls) == ["bfloat16", "float32"]


def test_the_real_probe():
    assert resolve_dtype("auto").name in dtype_module.SUPPORTED
