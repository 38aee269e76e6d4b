"""Decoding: the round, the loop around it, and the ways to call it."""

from specjax.decoding.config import DecodeConfig, FinishReason, power_widths
from specjax.decoding.decoder import Decoder, StreamUpdate, decode, generate
from specjax.decoding.invariants import InvariantError, Violation
from specjax.decoding.state import DecodeState, GenerateResult, Stats
from specjax.decoding.stop import Stop

__all__ = [
    "DecodeConfig",
    "DecodeState",
    "Decoder",
    "FinishReason",
    "GenerateResult",
    "InvariantError",
    "Stats",
    "Stop",
    "StreamUpdate",
    "Violation",
    "decode",
    "generate",
    "power_widths",
]
