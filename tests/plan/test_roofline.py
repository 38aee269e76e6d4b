"""The time model against sums done by hand."""

from __future__ import annotations

import dataclasses

import pytest

from specjax.hlo.traffic import Traffic
from specjax.plan.devices import Device, describe
from specjax.plan.roofline import seconds, tokens_per_round

DEVICE = Device(kind="tpu", memory_bytes=1e9, bandwidth=100.0, peak_flops=1000.0, link_bandwidth=10.0)


def test_the_slower_of_memory_and_arithmetic_decides():
    assert seconds(Traffic(read_bytes=150, written_bytes=50, flops=1000), DEVICE) == 2.0
    assert seconds(Traffic(read_bytes=150, written_bytes=50, flops=3000), DEVICE) == 3.0


def test_exchanges_are_waited_for():
    moved = Traffic(read_bytes=100, collective_bytes=40)
    assert seconds(moved, DEVICE) == pytest.approx(1.0 + 40 / 10)


@pytest.mark.parametrize("missing", ["bandwidth", "peak_flops", "link_bandwidth"])
def test_no_figures_no_time(missing):
    assert seconds(Traffic(read_bytes=1), dataclasses.replace(DEVICE, **{missing: None})) is None
    assert seconds(Traffic(read_bytes=1), describe("cpu")) is None


def test_tokens_of_a_round():
    assert tokens_per_round(0.0, 4) == 1
    assert tokens_per_round(1.0, 4) == 5
    assert tokens_per_round(0.5, 2) == 1.75
    assert tokens_per_round(0.8, 6) == pytest.approx((1 - 0.8**7) / (1 - 0.8))
