"""Sampling: settings, noise, and the way from logits to the law that tokens are drawn from."""

from specjax.sampling.automaton import Automaton
from specjax.sampling.likeliest import likeliest
from specjax.sampling.noise import Noise, Stream
from specjax.sampling.params import RowSampling, Sampling, row_seeds, to_rows
from specjax.sampling.pipeline import Draw, Pipeline, draw, drawable, log_law
from specjax.sampling.processors import Processor

__all__ = [
    "Automaton",
    "Draw",
    "Noise",
    "Pipeline",
    "Processor",
    "RowSampling",
    "Sampling",
    "Stream",
    "draw",
    "drawable",
    "likeliest",
    "log_law",
    "row_seeds",
    "to_rows",
]
