"""Length policies by name, as in pair files and on the command line."""

from __future__ import annotations

from specjax.policies.adaptive import Adaptive, BatchAdaptive
from specjax.policies.base import Fixed
from specjax.policies.confidence import Confidence, Entropy
from specjax.policies.protocol import Policy

_PLAIN = {
    "fixed": Fixed,
    "confidence": Confidence,
    "entropy": Entropy,
    "adaptive": Adaptive,
    "batch-adaptive": BatchAdaptive,
}
_WITH_NUMBER = {"confidence": Confidence, "entropy": Entropy}


def policy_named(name: str) -> Policy:
    """The policy of a name: `fixed`, `confidence`, `entropy`, `adaptive`, `batch-adaptive`.

    `confidence:0.6` and `entropy:2` also set the threshold, or the bound.

    Raises:
        ValueError: there is no such policy.
    """
    if name in _PLAIN:
        return _PLAIN[name]()
    kind, _, number = name.partition(":")
    try:
        return _WITH_NUMBER[kind](float(number))
    except (KeyError, ValueError) as error:
        names = ", ".join([*_PLAIN, *(f"{kind}:NUMBER" for kind in _WITH_NUMBER)])
        raise ValueError(f"{name!r} is no length policy; expected one of {names}") from error
