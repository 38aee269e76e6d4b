"""A cache against a fresh prefill of the text that it should hold."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.decoding.config import FinishReason
from specjax.decoding.state import DecodeState
from specjax.drafts import Model
from specjax.models.contract import ScoringModel
from specjax.models.feed import feed

_CHUNK = 128


class CacheMismatchError(AssertionError):
    """A cache predicts something else than the text it stands for."""


def check_caches(
    target: ScoringModel, state: DecodeState, *, draft: Model | None = None, atol: float = 1e-4
) -> dict[str, np.ndarray]:
    """Checks that caches hold exactly the committed text, by what they predict.

    With n tokens of a row in a cache, the row's next committed token is scored twice: with the cache, and
    with one that was filled with those n tokens from nothing. The logits must agree. Only the model's
    contract is used, so that any kind of cache can be checked. Each kind of model and shape compiles once.

    Args:
        target: the model that `state` was made with.
        state: from `Decoder.start`, `run_rounds` or `extend`. It stays usable.
        draft: the draft, if it has a cache of its own that is to be checked too.
        atol: by how much logits may differ: a prefill scores other widths than a round.

    Returns:
        `{"target": float[B], "draft": float[B]}`, the largest difference of each row. Rows that ended with an
        error count as 0: what made the model fail may be in their cache.

    Raises:
        CacheMismatchError: names the first row that differs, or whose cache does not hold the tokens that it
            should: all but the last one; a draft's may hold fewer.
    """
    caches: dict[str, tuple[Any, Any, Any]] = {"target": (target, state.cache, state.cached_length)}
    if draft is not None:
        caches["draft"] = (draft.module, state.draft.cache, draft.cached_length(state.draft))
    complete = np.asarray(state.length) - 1
    sound = np.asarray(state.finish_reason) != FinishReason.ERROR
    differences = {}
    for name, (model, cache, cached) in caches.items():
        held = np.asarray(cached)
        misplaced = sound & ((held > complete) | ((held < complete) & (name == "target")))
        if misplaced.any():
            row = int(misplaced.argmax())
            raise CacheMismatchError(
                f"the {name}'s cache of row {row} holds {held[row]} tokens; expected {complete[row]}, "
                "all that are committed but the last"
            )
        graphdef, weights = nnx.split(model)
        found = np.asarray(_differences(graphdef, weights, cache, state.tokens, cached))
        differences[name] = np.where(sound, found, 0.0)
        wrong = ~(differences[name] <= atol)  # NaN is wrong
        if wrong.any():
            row = int(wrong.argmax())
            raise CacheMismatchError(
                f"the {name}'s cache of row {row}, with {held[row]} tokens, gives logits that differ by "
                f"{found[row]:.3g} from those of a fresh prefill; expected at most {atol:.3g}"
            )
    return differences


@functools.partial(jax.jit, static_argnums=0)
def _differences(graphdef: Any, weights: Any, cache: Any, text: jax.Array, cached: jax.Array) -> jax.Array:
    """float[B]: how far the logits after token `cached` are from those of a fresh prefill."""
    model = nnx.merge(graphdef, weights)
    batch, width = text.shape
    # As `drafts.Model` feeds a text whose ids it may lack.
    text = jnp.minimum(text, model.vocab_size - 1)
    chunk = min(width, _CHUNK)
    fresh = model.init_cache(batch, width + chunk)
    fresh = feed(model, fresh, text, start=jnp.zeros_like(cached), stop=cached, chunk=chunk)
    token = jnp.take_along_axis(text, cached[:, None], axis=1)

    def predict(cache: Any) -> jax.Array:
        hidden, _, _ = model(token, cached[:, None], cache)
        return model.logits(hidden)

    return jnp.max(jnp.abs(predict(cache) - predict(fresh)), axis=(1, 2))
