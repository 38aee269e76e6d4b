"""Speculative decoding for Flax language models: faster, and the same text."""

from specjax import drafts, policies
from specjax.decoding import (
    DecodeConfig,
    Decoder,
    FinishReason,
    GenerateResult,
    InvariantError,
    Stop,
    decode,
    generate,
    power_widths,
)
from specjax.models.load import LanguageModel, load
from specjax.sampling import Sampling

__all__ = [
    "DecodeConfig",
    "Decoder",
    "FinishReason",
    "GenerateResult",
    "InvariantError",
    "LanguageModel",
    "Sampling",
    "Stop",
    "decode",
    "drafts",
    "generate",
    "load",
    "policies",
    "power_widths",
]
