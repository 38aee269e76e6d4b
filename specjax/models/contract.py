"""What specjax asks of a model: scoring tokens is a transaction."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax

# Any pytree of arrays with a leading structure only its model knows.
Cache = Any


@runtime_checkable
class ScoringModel(Protocol):
    """A causal language model that can score several tokens at once and forget those that were not accepted.

    Any Flax module may conform, by these four methods and `vocab_size`; nothing is inherited and nothing
    registered. `specjax.testing.check_model` says whether one does. B rows, T tokens scored, d hidden width,
    V vocabulary.

    Scoring is a transaction. Calling the model scores T tokens of each row and returns what it would take to
    keep them, `pending`; `commit` keeps the first `count[b]` of row `b`, and the rest never happened. Between
    the two nothing else touches the cache. What `pending` holds is the model's own affair:

    - attention: the new keys and values, which committing writes behind those of the row (or the cache with
      them written already). Slots beyond the committed length are garbage that no query sees, and are
      overwritten later;
    - recurrence: the state after each of the T tokens, of which `commit` picks the one after `count[b]` (the
      state before the call, if that is 0).

    A row's results depend on that row alone: not on the other rows' tokens, positions or counts.

    Attributes:
        vocab_size: width V of the logits, static.

    Optional attributes, all static and hashable:
        eos_ids: `tuple[int, ...]`, ids that end a generation when the caller names no others.
        context_length: `int | None`, the longest sequence that the model was made for.
        vocabulary: what the ids mean: equal for two models exactly if they map ids to the same strings; None
            when unknown.
        config: anything that describes the model.
        positional_cache: bool, the cache of a token is at its position and depends on nothing that comes
            later, so that lowering a length is all that forgetting takes. The library then commits all that
            was scored and lowers the length. As a draft, such a model need not feed accepted tokens again;
            as a target, it can score rounds of several widths.
    """

    vocab_size: int

    def init_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache.

        Args:
            batch: number of rows B, static.
            capacity: tokens that each row must have room for, static. Room beyond it is allowed.

        Returns:
            A pytree of arrays. Every later cache has the same structure, shapes and dtypes, since it is
            carried through a loop.
        """

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, cache: Cache, *, taps: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
        """Scores T tokens in each row, after the ones that the row's cache holds.

        Args:
            tokens: int32 `[B, T]`. Ids outside the vocabulary may occur in padding and must not yield NaN.
            positions: int32 `[B, T]`, absolute and consecutive within a row: `positions[b, 0]` is the number
                of tokens committed in row `b`, and differs from row to row. The caller keeps them below the
                capacity.
            cache: valid for the tokens before `positions[b, 0]`. It may be consumed.
            taps: as in `LayeredModel`; any other model is only given `()`.

        Returns:
            hidden: `[B, T, d]`, what `logits` takes; entry `t` has seen tokens up to and including `t`.
            tapped: a tuple of `[B, T, d]`, one for each of `taps`.
            pending: what `commit` needs.
        """

    def commit(self, cache: Cache, pending: Any, lengths: jax.Array, count: jax.Array) -> Cache:
        """Makes the first `count` scored tokens of each row part of the cache; the rest never happened.

        Args:
            cache: the cache that the scoring call was given.
            pending: what the scoring call returned.
            lengths: int32 `[B]`, tokens committed in each row before the call: its `positions[:, 0]`.
            count: int32 `[B]`, between 0 and T.

        Returns:
            The cache that holds `lengths + count` tokens.
        """

    def logits(self, hidden: jax.Array) -> jax.Array:
        """The head, apart from the body so that a prefill never builds `[B, P, V]`.

        Args:
            hidden: `[..., d]`.

        Returns:
            float32 `[..., V]`, unnormalised.
        """


class LayeredModel(ScoringModel, Protocol):
    """A model whose layers can be named by their index; an optional capability.

    Drafts that run some of the target's layers, or read their states, refuse a target without `num_layers`.

    Attributes:
        num_layers: how many there are, static.
    """

    num_layers: int

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: Cache,
        *,
        taps: tuple[int, ...] = (),
        layers: tuple[int, ...] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
        """Scores as `ScoringModel` does.

        Args:
            taps: static indices of layers whose input states are wanted; `num_layers` stands for the state
                behind the last one, before a final norm.
            layers: static; run these alone, in this order, and what comes behind the last one. What they need
                of the cache is there, from calls that ran all layers. Such a call is never committed; its
                `pending` may be None.
        """
