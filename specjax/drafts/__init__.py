"""Drafts: kinds of guesses about the next tokens."""

from specjax.drafts.base import BaseDraft
from specjax.drafts.fallback import Fallback
from specjax.drafts.layer_skip import LayerSkip
from specjax.drafts.loop import draw_tokens
from specjax.drafts.model import Model
from specjax.drafts.ngram import Ngram
from specjax.drafts.none import NoDraft
from specjax.drafts.protocol import Draft, Outcome, Proposal, RoundContext, no_proposal
from specjax.drafts.recycling import Recycling

__all__ = [
    "BaseDraft",
    "Draft",
    "Fallback",
    "LayerSkip",
    "Model",
    "Ngram",
    "NoDraft",
    "Outcome",
    "Proposal",
    "Recycling",
    "RoundContext",
    "draw_tokens",
    "no_proposal",
]
