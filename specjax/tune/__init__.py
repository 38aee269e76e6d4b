"""Tuning: what speculation should gain on this device, what it does gain, and which setting to use."""

from specjax.tune.cost import (
    RoundTime,
    acceptance,
    breakeven_rate,
    expected_tokens,
    expected_tokens_at,
    survival,
)
from specjax.tune.figure import write_figure
from specjax.tune.setting import Setting
from specjax.tune.tuner import Effort, tune
from specjax.tune.tuning import Components, Outcome, Tuning

__all__ = [
    "Components",
    "Effort",
    "Outcome",
    "RoundTime",
    "Setting",
    "Tuning",
    "acceptance",
    "breakeven_rate",
    "expected_tokens",
    "expected_tokens_at",
    "survival",
    "tune",
    "write_figure",
]
