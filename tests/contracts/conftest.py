"""What contracts are compiled with."""

from __future__ import annotations

import os

import jax
import pytest

# Before libtpu is loaded: it would lock out other processes, of these tests for one.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

from specjax.plan.devices import compiler_installed, describe


@pytest.fixture
def compiler_for():
    """`compiler_for(device)`: skips, or fails under `make contracts`, where its compiler is not installed."""

    def check(device: str) -> str:
        if not compiler_installed(device):
            message = (
                f"NOT TESTED: the compiler for {describe(device).kind} is not installed (make contracts)"
            )
            if os.environ.get("REQUIRE_COMPILERS"):
                pytest.fail(message)
            pytest.skip(message)
        return device

    # A program for a GPU that is not there cannot be stored.
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    yield check
    jax.config.update("jax_enable_compilation_cache", before)
