"""Tuning: what speculation should gain on this device, what it does gain, and which setting to use."""

from specjax.tune.cost import (
    RoundTime,
    acceptance,
    breakeven_rate,
    expected_tokens,
    expected_tokens_at,
    survival,
)

__all__ = [
    "RoundTime",
    "acceptance",
    "breakeven_rate",
    "expected_tokens",
    "expected_tokens_at",
    "survival",
]
