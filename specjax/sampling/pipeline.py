"""From raw logits to the law of the next token; the same steps for plain decoding, draft and target."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from specjax.sampling.likeliest import likeliest
from specjax.sampling.noise import Noise
from specjax.sampling.params import RowSampling
from specjax.sampling.processors import (
    BatchProcessor,
    Bias,
    Ends,
    NoRepeatNgram,
    Penalties,
    PerRow,
    Processor,
)
from specjax.sampling.thresholds import min_p_threshold, top_k_threshold, top_p_threshold

States = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The ordered list of processors of a program, in Hugging Face's order.

    Attributes:
        user: the caller's own processors, applied after the built-in ones.
        longest_bias: ids in a biased sequence, at most.
    """

    user: tuple[Processor, ...] = ()
    longest_bias: int = 1

    @property
    def processors(self) -> tuple[BatchProcessor, ...]:
        built_in = (Bias(self.longest_bias), Penalties(), NoRepeatNgram(), Ends())
        return (*built_in, *(PerRow(processor) for processor in self.user))

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> States:
        """States after the prompts int32[B, N] of `lengths` int32[B]; N tokens are what a row can hold."""
        return tuple(processor.init(prompts, lengths, vocab_size) for processor in self.processors)

    def process(self, rows: RowSampling, states: States, logits: jax.Array) -> jax.Array:
        """Processed logits float[B, V] of the next token, before temperature and filters."""
        for processor, state in zip(self.processors, states, strict=True):
            logits = jax.lax.cond(
                processor.used(rows),
                lambda logits, processor=processor, state=state: processor.apply(rows, state, logits),
                lambda logits: logits,
                logits,
            )
        return logits

    def process_block(
        self, rows: RowSampling, states: States, logits: jax.Array, drafted: jax.Array
    ) -> jax.Array:
        """Processed logits of a whole block, each position with the state after the draft before it.

        Memory stays that of one state: positions are processed one after another.

        Args:
            logits: float[B, T, V], raw.
            drafted: int32[B, T-1]; position t follows `drafted[:, :t]`.

        Returns:
            float[B, T, V]
        """
        batch, width, _ = logits.shape
        chex.assert_shape(drafted, (batch, width - 1))
        following = jnp.pad(drafted, ((0, 0), (0, 1)))
        everywhere = jnp.ones(batch, jnp.bool_)

        def step(states: States, inputs: tuple[jax.Array, jax.Array]) -> tuple[States, jax.Array]:
            logits, token = inputs
            return self.advance(states, token, everywhere), self.process(rows, states, logits)

        def process_all(logits: jax.Array) -> jax.Array:
            return jax.lax.scan(step, states, (logits.swapaxes(0, 1), following.T))[1].swapaxes(0, 1)

        used = [processor.used(rows) for processor in self.processors]
        return jax.lax.cond(jnp.any(jnp.stack(used)), process_all, lambda logits: logits, logits)

    def advance(self, states: States, tokens: jax.Array, valid: jax.Array) -> States:
        """States after one more token int32[B] in the rows that are `valid` bool[B]."""
        return tuple(
            processor.advance(state, tokens, valid)
            for processor, state in zip(self.processors, states, strict=True)
        )

    def advance_block(self, states: States, tokens: jax.Array, count: jax.Array) -> States:
        """States after the first `count` int32[B] of tokens int32[B, T]."""

        def step(states: States, inputs: tuple[jax.Array, jax.Array]) -> tuple[States, None]:
            slot, token = inputs
            return self.advance(states, token, slot < count), None

        slots = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        return jax.lax.scan(step, states, (slots, tokens.T))[0]


def log_law(rows: RowSampling, processed: jax.Array) -> jax.Array:
    """Log-probabilities of the law that tokens are drawn from.

    Temperature, then top-k, top-p and min-p, each over what the one before has left. Greedy rows have
    neither: theirs is the plain log-softmax, for reporting.

    Args:
        processed: float[B, ..., V], from `Pipeline.process`.

    Returns:
        float[B, ..., V], normalised; -inf for excluded tokens.
    """
    inner = (1,) * (processed.ndim - 2)

    def spread(value: jax.Array) -> jax.Array:
        return jnp.broadcast_to(value.reshape(-1, *inner), processed.shape[:-1])

    sampled = ~rows.greedy
    temperature = spread(jnp.where(sampled, rows.temperature, 1.0)).astype(processed.dtype)
    # The likeliest is moved to 0 first: a small temperature would make +inf of it.
    largest = jnp.max(processed, axis=-1, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0).astype(processed.dtype)
    logits = (processed - largest) / temperature[..., None]
    filters = (
        (sampled & (rows.top_k > 0), rows.top_k, top_k_threshold),
        (sampled & (rows.top_p < 1), rows.top_p, top_p_threshold),
        (sampled & (rows.min_p > 0), rows.min_p, min_p_threshold),
    )
    for used, value, threshold in filters:

        def keep_above(logits: jax.Array, used=used, value=value, threshold=threshold) -> jax.Array:
            floor = jnp.where(spread(used), threshold(logits, spread(value)), -jnp.inf)
            return jnp.where(logits >= floor[..., None], logits, -jnp.inf)

        logits = jax.lax.cond(jnp.any(used), keep_above, lambda logits: logits, logits)
    return jax.nn.log_softmax(logits, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draw:
    """Tokens of one slot and the very law they were drawn from.

    Attributes:
        tokens: int32[B].
        log_law: float[B, V], certain in greedy rows; arbitrary where no law was asked for.
        belief: float[B, V], the same, but in greedy rows the log-softmax that the token is likeliest in.
        drawable: bool[B], from `drawable`; the token of another row means nothing.
    """

    tokens: jax.Array
    log_law: jax.Array
    belief: jax.Array
    drawable: jax.Array


def draw(
    rows: RowSampling,
    raw: jax.Array,
    processed: jax.Array,
    noise: Noise,
    slot: jax.Array | int,
    *,
    law_needed: jax.Array,
) -> Draw:
    """Draws the proposal of one slot: the likeliest token in greedy rows, else by the Gumbel trick.

    Args:
        raw: float[B, V], the draft's logits. processed: float[B, V], the same processed.
        noise: batched, [B].
        law_needed: bool[]; False promises that every row is greedy and that nobody reads the law.
    """
    vocab_size = raw.shape[-1]
    best = likeliest(processed)

    def sample() -> tuple[jax.Array, jax.Array]:
        law = log_law(rows, processed)
        gumbel = jax.vmap(lambda noise: noise.proposal_gumbel(slot, vocab_size, law.dtype))(noise)
        tokens = jnp.where(rows.greedy, best, likeliest(law + gumbel))
        certain = jnp.where(jax.nn.one_hot(tokens, vocab_size, dtype=jnp.bool_), 0.0, -jnp.inf).astype(
            law.dtype
        )
        return tokens, jnp.where(rows.greedy[:, None], certain, law)

    def take_likeliest() -> tuple[jax.Array, jax.Array]:
        return best, jnp.zeros_like(processed)

    tokens, law = jax.lax.cond(law_needed, sample, take_likeliest)
    belief = jnp.where(rows.greedy[:, None], jax.nn.log_softmax(processed, axis=-1), law)
    return Draw(tokens, law, belief, drawable(raw, processed))


def drawable(raw: jax.Array, processed: jax.Array) -> jax.Array:
    """bool[...]: whether a token can be drawn from logits float[..., V].

    False where the raw ones hold NaN or +inf (-inf is a legitimate ban), and where processing has left no
    token or made a NaN.
    """
    largest = jnp.max(raw, axis=-1)  # NaN when any is NaN
    return ~jnp.isnan(largest) & (largest < jnp.inf) & jnp.isfinite(jnp.max(processed, axis=-1))
