"""Drafts: kinds of guesses about the next tokens."""

from specjax.drafts.base import BaseDraft
from specjax.drafts.loop import draw_tokens
from specjax.drafts.model import Model
from specjax.drafts.ngram import Ngram
from specjax.drafts.none import NoDraft
from specjax.drafts.protocol import Draft, Outcome, Proposal, RoundContext, no_proposal

__all__ = [
    "BaseDraft",
    "Draft",
    "Model",
    "Ngram",
    "NoDraft",
    "Outcome",
    "Proposal",
    "RoundContext",
    "draw_tokens",
    "no_proposal",
]
