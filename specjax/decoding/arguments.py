"""Arguments of a call, made into arrays; concrete values are looked at before anything compiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding import stop as stopping
from specjax.decoding.config import DecodeConfig
from specjax.decoding.state import Request
from specjax.decoding.stop import Stop
from specjax.sampling import RowSampling, Sampling, row_seeds
from specjax.sampling import to_rows as sampling_rows
from specjax.sampling.params import expectations


def prompt_arrays(
    prompts: Any, lengths: Any, vocab_size: int, *, shortest: int = 1, name: str = "prompts"
) -> tuple[jax.Array, jax.Array]:
    """Checked (prompts int32[B, P], lengths int32[B]).

    Raises:
        TypeError: prompts or lengths are not integers.
        ValueError: an empty batch, wrong shapes, a length outside `shortest`..P, an id outside the
            vocabulary.
    """
    lengths_name = f"{name[:-1]}_lengths"
    for argument, value, rank in ((name, prompts, 2), (lengths_name, lengths, 1)):
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
        if np.size(value) > 0 and not np.issubdtype(dtype, np.integer):
            raise TypeError(f"{argument} has dtype {dtype}; expected integers")
        if np.ndim(value) != rank:
            raise ValueError(f"{argument} has shape {np.shape(value)}; expected {rank} dimension(s)")
    batch, width = np.shape(prompts)
    if batch == 0 or width == 0:
        raise ValueError(f"{name} has shape {(batch, width)}; expected at least one row and one token")
    if np.shape(lengths) != (batch,):
        raise ValueError(
            f"{lengths_name} has shape {np.shape(lengths)}; expected ({batch},), one for each row"
        )

    if concrete(lengths):
        values = np.asarray(lengths)
        _check(lengths_name, values, (values >= shortest) & (values <= width), f"{shortest} to {width}")
        if concrete(prompts):
            tokens = np.asarray(prompts)
            padding = np.arange(width) >= values[:, None]
            _check(
                name,
                tokens,
                padding | ((tokens >= 0) & (tokens < vocab_size)),
                f"ids from 0 to {vocab_size - 1}",
            )
    return jnp.asarray(prompts, jnp.int32), jnp.asarray(lengths, jnp.int32)


def make_request(
    batch: int,
    config: DecodeConfig,
    vocab_size: int,
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
    stop: Stop | None,
    eos_ids: tuple[int, ...],
) -> Request:
    """What each row is asked for.

    Args:
        eos_ids: the model's own, for a `stop` that names none.

    Raises:
        ValueError: names the argument, the value and what was expected.
    """
    sampling = sampling or Sampling()
    stop = stop or Stop()
    if stop.eos_ids is None:
        stop = dataclasses.replace(stop, eos_ids=eos_ids)
    rows = stopping.to_rows(stop, batch, config)
    to_rows: Callable[[Sampling], RowSampling] = lambda s: sampling_rows(  # noqa: E731
        s,
        batch,
        eos_ids=rows.eos_ids,
        max_new_tokens=rows.max_new_tokens,
        max_bias=config.max_bias,
        max_bias_len=config.max_bias_len,
    )
    request = Request(
        sampling=to_rows(sampling),
        draft_sampling=to_rows(draft_sampling or sampling),
        stop=rows,
        seed=row_seeds(sampling.seed, batch),
    )
    _check_sampling("sampling", request.sampling, vocab_size)
    _check_sampling("draft_sampling", request.draft_sampling, vocab_size)
    _check_stop(request, config, vocab_size)
    return request


def check_capacity(request: Request, lengths: Any, capacity: int, target: Any) -> None:
    """Raises ValueError where a row's text and budget do not fit the capacity or the target's context."""
    budget = request.stop.max_new_tokens
    if not (concrete(lengths) and concrete(budget)):
        return
    total = np.asarray(lengths) + np.asarray(budget)
    name = "prompt length + max_new_tokens"
    _check(name, total, total <= capacity, f"at most the capacity of {capacity}")
    if (context := getattr(target, "context_length", None)) is not None:
        _check(name, total, total <= context, f"at most the target's context of {context}")


def concrete(value: Any) -> bool:
    """Whether a value can be looked at: it is not being traced."""
    return not isinstance(value, jax.core.Tracer)


def _check_sampling(name: str, rows: RowSampling, vocab_size: int) -> None:
    public = {
        "bias_ids": "logit_bias, sequence_bias, banned_tokens or banned_sequences",
        "bias_values": "logit_bias or sequence_bias",
    }
    for field, (valid, expected) in expectations(vocab_size).items():
        if concrete(getattr(rows, field)):
            values = np.asarray(getattr(rows, field))
            _check(f"{name}.{public.get(field, field)}", values, valid(values), expected)


def _check_stop(request: Request, config: DecodeConfig, vocab_size: int) -> None:
    stop = request.stop
    ids = f"ids from 0 to {vocab_size - 1}"
    for name, value in (("stop.eos_ids", stop.eos_ids), ("stop.sequences", stop.sequences)):
        if concrete(value):
            _check(name, np.asarray(value), (np.asarray(value) >= -1) & (np.asarray(value) < vocab_size), ids)
    if concrete(stop.max_new_tokens):
        budget = np.asarray(stop.max_new_tokens)
        most = config.max_new_tokens
        _check("stop.max_new_tokens", budget, (budget >= 0) & (budget <= most),
               f"0 to DecodeConfig.max_new_tokens, {most}")  # fmt: skip


def _check(name: str, values: np.ndarray, valid: Any, expected: str) -> None:
    """Raises ValueError that names the first value, and its row, that is not as expected."""
    bad = np.argwhere(~np.asarray(valid))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(f"{name} is {values[where]} in row {where[0]}; expected {expected}")
