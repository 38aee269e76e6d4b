"""The shipped code keeps every promise of `checks`."""

import pytest

from tests.exactness.checks import CHECKS

SEEDS = range(10)


@pytest.mark.parametrize("name", CHECKS)
def test_shipped_code_passes(name):
    for seed in SEEDS:
        CHECKS[name](seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_shipped_code_passes_at_many_more_seeds(name):
    for seed in range(len(SEEDS), 100):
        CHECKS[name](seed)
