"""What a decoder needs and how fast it could be, from the compiler alone, for a device that is not there."""

from specjax.plan.compilation import largest_batch, plan
from specjax.plan.plan import PASSES, Compiled, Memory, Plan, Step

__all__ = ["PASSES", "Compiled", "Memory", "Plan", "Step", "largest_batch", "plan"]
