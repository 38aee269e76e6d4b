"""Every random number of a generation, keyed so that a row never depends on its neighbours."""

from __future__ import annotations

import dataclasses
import enum
import functools

import jax
import jax.numpy as jnp


class Stream(enum.IntEnum):
    """Disjoint uses of randomness. One number is never read for two purposes.

    A residual drawn with the noise that chose the rejected token is biased: the Gumbel vector is already
    known to favour that token.
    """

    PROPOSAL = 0
    ACCEPTANCE = 1
    REPLACEMENT = 2
    POSITION = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """The noise of one row in one round; `jax.vmap` over a batched instance gives every row its own.

    Numbers are keyed by (request seed, round of the request, stream, slot), never by batch row or wall clock.
    They are not keyed by absolute position, except in `position_gumbel`: after a rejection a position is
    drafted again, and rules that look at a whole block would see noise they had looked at.

    Keys are threefry whatever the JAX default: under the `rbg` generator a row inside `vmap` draws other
    numbers than the same row alone.

    Attributes:
        seed_key: key[], of the request's seed.
        round_key: key[], of seed and round.
        position: int32[], committed length: the absolute position of the next token.
        shared: static; proposals draw from `position_gumbel`, so that draft and target share their noise
            (coupled sampling, Daliri et al., arXiv 2408.07978).
    """

    seed_key: jax.Array
    round_key: jax.Array
    position: jax.Array
    shared: bool = dataclasses.field(default=False, metadata={"static": True})

    @classmethod
    def of_round(
        cls, seed: jax.Array, round: jax.Array, position: jax.Array, *, shared: bool = False
    ) -> Noise:
        """The noise of seed uint32[], round int32[] and committed length int32[], or of a batch, [B]."""
        make_key = functools.partial(jax.random.key, impl="threefry2x32")
        fold_in = jax.random.fold_in
        if jnp.ndim(seed) == 1:
            make_key, fold_in = jax.vmap(make_key), jax.vmap(fold_in)
        seed_key = make_key(seed)
        return cls(seed_key, fold_in(seed_key, round), position, shared)

    def proposal_gumbel(self, slot: jax.Array | int, size: int, dtype: jnp.dtype) -> jax.Array:
        """Gumbel[size] from which the draft draws the token of `slot`."""
        if self.shared:
            return self.position_gumbel(slot, size, dtype)
        return jax.random.gumbel(_stream(self.round_key, Stream.PROPOSAL, slot), (size,), dtype)

    def accept_log_uniform(self, slots: int, dtype: jnp.dtype) -> jax.Array:
        """Log u for each of `slots`, with u uniform on (0, 1], so that it is never -inf."""
        uniform = jax.random.uniform(_stream(self.round_key, Stream.ACCEPTANCE), (slots,), dtype)
        return jnp.log1p(-uniform)

    def replacement_gumbel(self, size: int, dtype: jnp.dtype) -> jax.Array:
        """Gumbel[size] for the token after the accepted ones: the residual's or the bonus token."""
        return jax.random.gumbel(_stream(self.round_key, Stream.REPLACEMENT), (size,), dtype)

    def position_gumbel(self, offset: jax.Array | int, size: int, dtype: jnp.dtype) -> jax.Array:
        """Gumbel[size] of absolute position `position + offset`, the same in every round."""
        key = jax.random.fold_in(self.seed_key, self.position + offset)
        return jax.random.gumbel(_stream(key, Stream.POSITION), (size,), dtype)


def _stream(key: jax.Array, stream: Stream, slot: jax.Array | int = 0) -> jax.Array:
    """The key of a slot of a stream: one number for both, since each folding costs a hash."""
    return jax.random.fold_in(key, slot * len(Stream) + stream.value)
