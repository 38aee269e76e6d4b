"""The first index of the largest logit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import likeliest


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 50)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_lowest_of_equals_wins(shape, dtype):
    logits = jax.random.normal(jax.random.key(0), shape).astype(dtype)
    tied = jnp.round(2 * logits)  # few values, many ties
    for array in (logits, tied, jnp.full_like(tied, -jnp.inf), tied.at[..., 2:].set(-jnp.inf)):
        found = jax.jit(likeliest)(array)
        assert found.dtype == jnp.int32
        np.testing.assert_array_equal(found, np.argmax(np.asarray(array, np.float32), axis=-1))


def test_an_index_of_nothing_is_still_an_index():
    rows = jnp.array([[0.0, jnp.nan, 1.0], [jnp.nan, jnp.nan, jnp.nan], [jnp.inf, 0.0, jnp.inf]])
    found = likeliest(rows)
    assert found[2] == 0
    assert jnp.all((found >= 0) & (found < 3))


def test_rows_may_be_mapped():
    logits = jax.random.normal(jax.random.key(1), (4, 3, 9))
    np.testing.assert_array_equal(jax.vmap(jax.vmap(likeliest))(logits), np.argmax(logits, axis=-1))
