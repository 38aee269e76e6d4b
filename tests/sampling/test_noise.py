"""Every random number: used once, and the same wherever a row sits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.sampling import Noise

SIZE, SLOTS, ROUNDS, POSITIONS = 2048, 3, 4, 5


@jax.jit
def numbers(seed):
    """float32[N, SIZE]: a vector for each (round, stream, slot) and for each position, as uniform numbers."""
    gumbels, log_uniforms = [], []
    for round in range(ROUNDS):
        noise = Noise.of_round(seed, jnp.int32(round), jnp.int32(0))
        gumbels += [noise.proposal_gumbel(slot, SIZE, jnp.float32) for slot in range(SLOTS)]
        gumbels.append(noise.replacement_gumbel(SIZE, jnp.float32))
        log_uniforms.append(noise.accept_log_uniform(SIZE, jnp.float32))
    noise = Noise.of_round(seed, jnp.int32(0), jnp.int32(0))
    gumbels += [noise.position_gumbel(offset, SIZE, jnp.float32) for offset in range(POSITIONS)]
    return jnp.concatenate([jnp.exp(-jnp.exp(-jnp.stack(gumbels))), -jnp.expm1(jnp.stack(log_uniforms))])


def one_of_each(noise):
    return (
        noise.proposal_gumbel(1, 4, jnp.float32),
        noise.accept_log_uniform(4, jnp.float32),
        noise.replacement_gumbel(4, jnp.float32),
        noise.position_gumbel(2, 4, jnp.float32),
    )


def test_no_number_is_used_twice():
    """Vectors of all rounds, streams, slots, positions and several seeds: no two hold the same randomness."""
    vectors = np.concatenate([numbers(jnp.uint32(seed)) for seed in (0, 1, 2, 2**32 - 1)])
    assert len(vectors) == 4 * (ROUNDS * (SLOTS + 2) + POSITIONS)
    correlation = np.corrcoef(vectors)
    off_diagonal = correlation[~np.eye(len(vectors), dtype=bool)]
    assert np.max(np.abs(off_diagonal)) < 5.5 / np.sqrt(SIZE)
    # Nor shifted by one place, as when a key is folded once too little.
    shifted = np.corrcoef(vectors[:, 1:], vectors[:, :-1])
    assert np.max(np.abs(shifted[~np.eye(len(shifted), dtype=bool)])) < 5.5 / np.sqrt(SIZE)


def test_numbers_have_the_law_they_claim():
    for vector in np.asarray(numbers(jnp.uint32(5))):
        assert stats.kstest(vector, "uniform").pvalue > 1e-5


def test_uniforms_of_all_accept_tests_of_a_seed_are_uniform_together():
    """One number a round and slot, as the accept tests use them: across rounds, not across one vector."""

    @jax.jit
    @jax.vmap
    def log_u(round):
        return Noise.of_round(jnp.uint32(3), round, round * 2).accept_log_uniform(4, jnp.float32)

    uniforms = np.exp(np.asarray(log_u(jnp.arange(4000))))
    assert stats.kstest(uniforms.ravel(), "uniform").pvalue > 1e-5
    correlation = np.corrcoef(uniforms.T)[~np.eye(4, dtype=bool)]
    assert np.max(np.abs(correlation)) < 5 / np.sqrt(4000)


def test_log_u_is_finite_and_never_above_zero():
    noise = Noise.of_round(jnp.uint32(0), jnp.int32(0), jnp.int32(0))
    log_u = np.asarray(noise.accept_log_uniform(1_000_000, jnp.float32))
    assert np.isfinite(log_u).all()
    assert log_u.max() <= 0


def test_log_u_is_finite_where_the_generator_ends(monkeypatch):
    """A uniform number may be 0, and is never 1."""
    ends = jnp.array([0.0, np.nextafter(np.float32(1), np.float32(0))])
    monkeypatch.setattr(jax.random, "uniform", lambda *args, **kwargs: ends)
    log_u = Noise.of_round(jnp.uint32(0), jnp.int32(0), jnp.int32(0)).accept_log_uniform(2, jnp.float32)
    assert np.isfinite(log_u).all()
    assert np.max(log_u) <= 0
    assert np.ptp(log_u) > 15


def test_a_row_of_a_batch_draws_what_it_draws_alone():
    seeds, rounds, positions = jnp.array([9, 3, 3], jnp.uint32), jnp.array([0, 2, 1]), jnp.array([4, 8, 8])
    batch = jax.vmap(one_of_each)(Noise.of_round(seeds, rounds, positions))
    for row in range(3):
        alone = one_of_each(Noise.of_round(seeds[row], rounds[row], positions[row]))
        for of_batch, of_row in zip(batch, alone, strict=True):
            np.testing.assert_array_equal(of_batch[row], of_row)


@pytest.mark.parametrize("generator", ("rbg", "unsafe_rbg"))
def test_numbers_do_not_depend_on_the_default_generator(generator):
    def draw():
        seeds = jnp.array([9, 3], jnp.uint32)
        return jax.vmap(one_of_each)(Noise.of_round(seeds, jnp.array([0, 2]), jnp.array([4, 8])))

    expected = draw()
    with jax.default_prng_impl(generator):
        jax.tree.map(np.testing.assert_array_equal, draw(), expected)


def test_positions_keep_their_noise_in_every_round_and_slots_do_not():
    early = Noise.of_round(jnp.uint32(1), jnp.int32(0), jnp.int32(10))
    late = Noise.of_round(jnp.uint32(1), jnp.int32(3), jnp.int32(12))
    np.testing.assert_array_equal(
        early.position_gumbel(3, 4, jnp.float32), late.position_gumbel(1, 4, jnp.float32)
    )
    assert np.all(early.proposal_gumbel(1, 4, jnp.float32) != late.proposal_gumbel(1, 4, jnp.float32))
    assert np.all(early.replacement_gumbel(4, jnp.float32) != late.replacement_gumbel(4, jnp.float32))


def test_shared_noise_is_that_of_the_position():
    shared = Noise.of_round(jnp.uint32(1), jnp.int32(2), jnp.int32(10), shared=True)
    np.testing.assert_array_equal(
        shared.proposal_gumbel(2, 4, jnp.float32), shared.position_gumbel(2, 4, jnp.float32)
    )
