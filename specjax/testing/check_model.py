"""Tells the owner of a Flax module whether it conforms to `specjax.models.contract.ScoringModel`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.models.contract import LayeredModel, ScoringModel

# Tokens scored at a time while tokens are accepted and rejected.
_WIDTH = 4

# `(cache, tokens[B, T], lengths[B], count[B]) -> (logits[B, T, V], cache)`: one transaction.
_Transaction = Callable[[Any, np.ndarray, np.ndarray, np.ndarray], tuple[jax.Array, Any]]


class ModelContractError(ValueError):
    """A model breaks the scoring contract.

    Attributes:
        method: the method at fault.
        expected: what the contract asks of it.
        seen: what it did.
    """

    def __init__(self, method: str, expected: str, seen: str):
        super().__init__(f"{method}: expected {expected}; saw {seen}")
        self.method = method
        self.expected = expected
        self.seen = seen


def check_model(model: ScoringModel, *, batch: int = 2, length: int = 24, atol: float | None = None) -> None:
    """Checks that scoring is a transaction: equal results however a text is cut into blocks.

    The same random texts are scored in one pass, token by token, and in blocks of which every row keeps its
    own number of tokens (none and all among them) while the rest, which is junk, must leave no trace. The
    logits must agree each time. They must not depend on later tokens, on other rows or on spare capacity
    either. A model that says `positional_cache` must also forget committed tokens by a lower length alone.

    Compiles the model four times. Run it in float32 when possible: half precision hides small faults.

    Args:
        model: an nnx module, or an nnx adapter of any other.
        batch: number of rows, at least 2.
        length: tokens in each text.
        atol: by how much logits may differ: two shapes of one matrix product round differently. By default
            `logit_tolerance`.

    Raises:
        ModelContractError: names the method, what was expected and what was seen.
        ValueError: `batch` or `length` leave nothing to check.

    Example:
        >>> check_model(Transformer(config, rngs=nnx.Rngs(0)))
    """
    if batch < 2 or length < 2 * _WIDTH:
        raise ValueError(f"batch is {batch} and length {length}; expected at least 2 and {2 * _WIDTH}")
    if not isinstance(getattr(model, "vocab_size", None), int) or model.vocab_size < 1:
        seen = repr(getattr(model, "vocab_size", "no such attribute"))
        raise ModelContractError("vocab_size", "a positive Python int, the width of the logits", seen)
    capacity = length + _WIDTH
    _check_shapes(model, batch, capacity)

    generator = np.random.default_rng(0)
    texts = generator.integers(model.vocab_size, size=(batch, length), dtype=np.int32)
    ragged = _ragged_counts(batch, length)
    junk = generator.integers(model.vocab_size, size=(len(ragged), batch, _WIDTH), dtype=np.int32)
    outside = np.where(np.arange(_WIDTH) % 2, model.vocab_size, -1).astype(np.int32)
    play = functools.partial(_play, model, _transaction(model), capacity=capacity)

    one_pass, no_junk = np.full((1, batch), length), np.zeros((1, batch, length), np.int32)
    whole = play(texts, one_pass, no_junk)
    if atol is None:
        atol = logit_tolerance(model, whole)

    def expect_equal(method: str, expected: str, seen: np.ndarray, reference: np.ndarray) -> None:
        difference = np.abs(seen - reference).max(axis=-1)
        row, position = np.unravel_index(difference.argmax(), difference.shape)
        if (worst := difference[row, position]) > atol:
            where = f"row {row}, position {position}"
            raise ModelContractError(
                method, expected, f"a difference of {worst:.3g} (atol {atol:.3g}) at {where}"
            )

    half = length // 2
    other_future = np.concatenate([texts[:, :half], texts[::-1, half:]], axis=1)
    seen = play(other_future, one_pass, no_junk)[:, :half]
    expect_equal("__call__", "logits that do not depend on later tokens", seen, whole[:, :half])
    other_rows = np.concatenate([texts[:1], texts[1:, ::-1]])
    seen = play(other_rows, one_pass, no_junk)[:1]
    expect_equal("__call__", "logits of a row that do not depend on other rows", seen, whole[:1])

    seen = play(texts, np.ones((length, batch), int), np.zeros((length, batch, 1), np.int32))
    expect_equal("__call__ or commit", "token by token the logits of one pass over the text", seen, whole)
    blocks = play(texts, ragged, junk)
    expected = (
        "after keeping `count` of the scored tokens the logits of a text in which the rest never occurred"
    )
    expect_equal("commit", expected, blocks, whole)
    expected = "no trace of rejected tokens, whatever they were (here ids outside the vocabulary)"
    expect_equal("commit", expected, play(texts, ragged, np.broadcast_to(outside, junk.shape)), blocks)
    if getattr(model, "positional_cache", False):
        expected = "tokens to be forgotten by lowering the length, even after they were committed"
        expect_equal("positional_cache", expected, play(texts, ragged, junk, commit_all=True), blocks)
    roomier = play(texts, ragged, junk, capacity=2 * capacity + 1)
    expect_equal("init_cache", "results that do not depend on spare capacity", roomier, blocks)


def logit_tolerance(model: ScoringModel, logits: np.ndarray) -> float:
    """By how much rounding may move a model's logits, from one compiled shape to another.

    1e-4 of the largest logit if the hidden states are float32 or wider, else 0.1 of it.
    """
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    hidden = jax.eval_shape(lambda token: model(token, token, model.init_cache(1, 1))[0], token)
    share = 1e-4 if jnp.finfo(hidden.dtype).bits >= 32 else 0.1
    return share * float(np.abs(logits).max())


def _check_shapes(model: ScoringModel, batch: int, capacity: int) -> None:
    """Checks structure, shapes and dtypes of every method without running one."""

    def abstract(method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        with _blamed_on(method):
            return jax.eval_shape(function, *arguments)

    def expect(method: str, expected: str, seen: Any, holds: bool) -> None:
        if not holds:
            raise ModelContractError(method, expected, str(seen))

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    cache = abstract("init_cache", lambda: model.init_cache(batch, capacity))
    expect("init_cache", "a pytree of arrays", cache, bool(jax.tree.leaves(cache)))

    tokens, rows = ints(batch, _WIDTH), ints(batch)
    scored = abstract("__call__", lambda t, p, c: model(t, p, c, taps=()), tokens, tokens, cache)
    triple = isinstance(scored, tuple) and len(scored) == 3
    expect("__call__", "a tuple (hidden, tapped, pending)", jax.tree.structure(scored), triple)
    hidden, tapped, pending = scored
    is_hidden = getattr(hidden, "ndim", None) == 3 and hidden.shape[:2] == tokens.shape
    is_hidden = is_hidden and jnp.issubdtype(hidden.dtype, jnp.floating)
    expect("__call__", f"hidden floating [{batch}, {_WIDTH}, d]", hidden, is_hidden)
    expect("__call__", "an empty tuple of tapped states when `taps` is empty", tapped, tapped == ())
    if (count := getattr(model, "num_layers", None)) is not None:
        some = functools.partial(cast(LayeredModel, model), taps=(0, count), layers=(0,))
        state, states = abstract("__call__", lambda *block: some(*block)[:2], tokens, tokens, cache)
        is_part = state == hidden and [tapped.shape[:2] for tapped in states] == 2 * [tokens.shape]
        expected = f"with one of its layers the same shapes, and two tapped states [{batch}, {_WIDTH}, d]"
        expect("__call__", expected, (state, *states), is_part)

    committed = abstract("commit", model.commit, cache, pending, rows, rows)
    expect("commit", "a cache like the one from init_cache", *_difference(committed, cache))
    for leading in ((batch, _WIDTH), (batch,)):
        states = jax.ShapeDtypeStruct((*leading, hidden.shape[-1]), hidden.dtype)
        logits = abstract("logits", model.logits, states)
        is_logits = getattr(logits, "shape", None) == (*leading, model.vocab_size)
        is_logits = is_logits and logits.dtype in (jnp.float32, jnp.float64)
        expect("logits", f"float32 {[*leading, model.vocab_size]}", logits, is_logits)


def _difference(seen: Any, expected: Any) -> tuple[str, bool]:
    """Where `seen` could not take the place of `expected` as a loop's carry, and whether it could."""
    if jax.tree.structure(seen) != jax.tree.structure(expected):
        return f"{jax.tree.structure(seen)} in place of {jax.tree.structure(expected)}", False
    leaves = zip(jax.tree.leaves_with_path(seen), jax.tree.leaves(expected), strict=True)
    for (path, leaf), wanted in leaves:
        if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
            return f"leaf {jax.tree_util.keystr(path)} {leaf} in place of {wanted}", False
    return "", True


@contextlib.contextmanager
def _blamed_on(method: str) -> Generator[None, None, None]:
    try:
        yield
    except Exception as error:
        raise ModelContractError(method, "no exception", f"{type(error).__name__}: {error}") from error


def _transaction(model: ScoringModel) -> _Transaction:
    """Scores and commits in one compiled program, with the weights as arguments, as decoding does."""
    with _blamed_on("nnx.split(model)"):
        graphdef, state = nnx.split(model)

    @jax.jit
    def transaction(state, cache, tokens, lengths, count):
        model = nnx.merge(graphdef, state)
        positions = lengths[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
        hidden, _, pending = model(tokens, positions, cache, taps=())
        return model.logits(hidden), model.commit(cache, pending, lengths, count)

    return functools.partial(transaction, state)


def _ragged_counts(batch: int, length: int) -> np.ndarray:
    """int[R, B]: how many of `_WIDTH` tokens a row keeps in a round: every number, rows out of step."""
    counts, lengths = [], np.zeros(batch, int)
    while (lengths < length).any():
        wanted = (len(counts) + 2 * np.arange(batch)) % (_WIDTH + 1)
        counts.append(np.minimum(wanted, length - lengths))
        lengths += counts[-1]
    return np.array(counts)


def _play(
    model: ScoringModel,
    transaction: _Transaction,
    texts: np.ndarray,
    counts: np.ndarray,
    junk: np.ndarray,
    *,
    capacity: int,
    commit_all: bool = False,
) -> np.ndarray:
    """Scores texts in rounds of one width, from an empty cache.

    Args:
        texts: int[B, L].
        counts: int[R, B], tokens that each row keeps in each round; a row's add up to L.
        junk: int[R, B, T], what stands in the slots that are not kept.
        commit_all: commit those slots too; the next round then starts at a lower length than was committed.

    Returns:
        float[B, L, V], the logits after each token of each text, from the round in which it was kept.
    """
    batch, length = texts.shape
    slots = np.arange(junk.shape[-1])
    cache = model.init_cache(batch, capacity)
    lengths = np.zeros(batch, np.int32)
    kept_logits = np.zeros((batch, length, model.vocab_size))
    for count, filler in zip(counts.astype(np.int32), junk, strict=True):
        source = np.minimum(lengths[:, None] + slots, length - 1)
        kept = slots < count[:, None]
        tokens = np.where(kept, np.take_along_axis(texts, source, axis=1), filler)
        committed = np.full_like(count, len(slots)) if commit_all else count
        logits, cache = transaction(cache, tokens, lengths, committed)
        logits = np.asarray(logits)
        if not np.isfinite(logits).all():
            raise ModelContractError(
                "__call__", "finite logits, also for ids outside the vocabulary", "NaN or infinity"
            )
        row, slot = np.nonzero(kept)
        kept_logits[row, lengths[row] + slot] = logits[row, slot]
        lengths = lengths + count
    return kept_logits
