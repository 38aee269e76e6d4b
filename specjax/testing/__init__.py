"""Tools for tests of one's own models, drafts and rules."""

from specjax.testing.caches import CacheMismatchError, check_caches
from specjax.testing.check_model import ModelContractError, check_model, logit_tolerance
from specjax.testing.compiles import CompileCount, count_compiles
from specjax.testing.enumeration import RuleOutcome, enumerate_rule, exact_law, total_variation
from specjax.testing.faults import FromLogits, Oracle
from specjax.testing.perturbed import perturbed
from specjax.testing.programs import assert_donated, assert_no_cache_copies, assert_one_compile
from specjax.testing.table_lm import LayeredTableLM, TableLM, sequence_law

__all__ = [
    "CacheMismatchError",
    "CompileCount",
    "FromLogits",
    "LayeredTableLM",
    "ModelContractError",
    "Oracle",
    "RuleOutcome",
    "TableLM",
    "assert_donated",
    "assert_no_cache_copies",
    "assert_one_compile",
    "check_caches",
    "check_model",
    "count_compiles",
    "enumerate_rule",
    "exact_law",
    "logit_tolerance",
    "perturbed",
    "sequence_law",
    "total_variation",
]
