"""Speculative decoding for Flax language models: faster, and the same text."""

from specjax import drafts
from specjax.decoding import (
    DecodeConfig,
    Decoder,
    FinishReason,
    GenerateResult,
    InvariantError,
    Stop,
    decode,
    generate,
)
from specjax.sampling import Sampling

__all__ = [
    "DecodeConfig",
    "Decoder",
    "FinishReason",
    "GenerateResult",
    "InvariantError",
    "Sampling",
    "Stop",
    "decode",
    "drafts",
    "generate",
]
