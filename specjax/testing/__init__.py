"""Tools for tests of one's own models, drafts and rules."""

from specjax.testing.check_model import ModelContractError, check_model
from specjax.testing.table_lm import TableLM, sequence_law

__all__ = ["ModelContractError", "TableLM", "check_model", "sequence_law"]
