"""Drafts: kinds of guesses about the next tokens."""

from specjax.drafts.model import Model
from specjax.drafts.ngram import Ngram
from specjax.drafts.none import NoDraft
from specjax.drafts.protocol import Draft, Proposal, RoundContext, no_proposal

__all__ = ["Draft", "Model", "Ngram", "NoDraft", "Proposal", "RoundContext", "no_proposal"]
