"""Length policies: how many draft tokens a round proposes."""

from specjax.policies.adaptive import Adaptive, BatchAdaptive
from specjax.policies.base import BasePolicy, Fixed
from specjax.policies.confidence import Confidence, Entropy
from specjax.policies.names import policy_named
from specjax.policies.protocol import Policy

__all__ = [
    "Adaptive",
    "BasePolicy",
    "BatchAdaptive",
    "Confidence",
    "Entropy",
    "Fixed",
    "Policy",
    "policy_named",
]
