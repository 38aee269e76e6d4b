"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

# Before anything imports jax, which reads them once. Set the first one to run the tests on an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compiling. Code that runs once need not be optimized by LLVM, and what one
# process has compiled in this run the others can load; they inherit the path.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="specjax-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

GOLDENS = Path(__file__).parent / "goldens"
DEMO_PROMPTS = Path(__file__).parents[1] / "configs" / "demo_prompts.jsonl"


def pytest_addoption(parser):
    parser.addoption(
        "--prompts",
        default=str(DEMO_PROMPTS),
        help="JSONL of prompts for the tests of real models, one object with `prompt` or `turns` a line",
    )


@pytest.fixture(scope="session")
def prompt_file(request) -> str:
    """Where the tests of real models take their prompts from."""
    return request.config.getoption("--prompts")


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The directory of stored reference outputs."""
    return GOLDENS


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The file of the default model, downloaded on first use."""
    from specjax.models import default_model

    try:
        return default_model.fetch(progress=False)
    except RuntimeError as error:
        pytest.skip(f"NOT TESTED with a real model, because it could not be downloaded: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """The default model in float32, as `specjax.load` returns it."""
    from specjax.models import load

    return load(smollm2_path, dtype="float32")


@pytest.fixture
def fresh_programs(monkeypatch):
    """For tests that replace functions of the library: programs compiled before do not notice."""
    from specjax.decoding import decoder

    for name in ("_programs", "_admission_programs"):
        monkeypatch.setattr(decoder, name, functools.lru_cache(getattr(decoder, name).__wrapped__))


@pytest.fixture(scope="session")
def score():
    """`score(model, ids [B, T])`: the logits [B, T, V] of one pass over whole sequences."""

    @nnx.jit
    def logits(model, tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden, _, _ = model(tokens, positions, model.init_cache(*tokens.shape))
        return model.logits(hidden)

    def score(model, ids) -> np.ndarray:
        return np.asarray(logits(model, jnp.asarray(ids, jnp.int32)))

    return score
