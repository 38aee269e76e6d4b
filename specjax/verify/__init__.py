"""Verification: acceptance rules that keep the target's law."""

from specjax.verify.block import verify_block
from specjax.verify.coupled import verify_coupled
from specjax.verify.rule import Rule, RuleFunction
from specjax.verify.token import verify_token
from specjax.verify.verify import verify, verify_greedy

# "auto" is the block rule, which is the token rule for drafts that propose a point mass.
RULES = {
    rule.name: rule
    for rule in (
        Rule("auto", verify_block),
        Rule("token", verify_token),
        Rule("block", verify_block),
        Rule("coupled", verify_coupled, shares_noise=True),
    )
}

__all__ = [
    "RULES",
    "Rule",
    "RuleFunction",
    "verify",
    "verify_block",
    "verify_coupled",
    "verify_greedy",
    "verify_token",
]
