"""Verification: acceptance rules that keep the target's law."""

from specjax.verify.rule import Rule, RuleFunction
from specjax.verify.token import verify_token
from specjax.verify.verify import verify, verify_greedy

RULES = {rule.name: rule for rule in (Rule("token", verify_token),)}

__all__ = ["RULES", "Rule", "RuleFunction", "verify", "verify_greedy", "verify_token"]
