"""How long a program takes if memory, arithmetic or links run at their published speed: a model."""

from __future__ import annotations

from specjax.hlo.traffic import Traffic
from specjax.plan.devices import Device

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


def seconds(traffic: Traffic, device: Device) -> float | None:
    """`max(bytes / bandwidth, flops / peak) + collectives`; None for a device without published figures.

    Memory and arithmetic overlap, exchanges with other chips wait for both. Of n chips in a ring each sends
    `2 (n - 1) / n` of its operand for a sum and `n - 1` times its operand for a gather, as `Traffic` counts.
    Latencies are left out, so real programs are slower; the smaller they are, the more.

    Williams et al., "Roofline: an insightful visual performance model for multicore architectures", 2009.
    """
    if device.bandwidth is None or device.peak_flops is None or device.link_bandwidth is None:
        return None
    work = max(traffic.total_bytes / device.bandwidth, traffic.flops / device.peak_flops)
    return work + traffic.collective_bytes / device.link_bandwidth


def tokens_per_round(acceptance: float, gamma: int) -> float:
    """Mean tokens of a round if each draft token is accepted with the same probability a, on its own.

    `1 + a + ... + a^gamma = (1 - a^(gamma + 1)) / (1 - a)` (Leviathan et al., arXiv 2211.17192, equation 1).
    """
    return sum(acceptance**count for count in range(gamma + 1))
