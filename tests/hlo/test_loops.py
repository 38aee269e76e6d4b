"""How often loops run, where constants decide and where they do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.hlo import module
from specjax.hlo.constants import Constants
from specjax.hlo.traffic import count

X = jnp.ones((8, 8))
ONE = 2 * 8**3  # flops of one product


def product(_, x):
    return jnp.tanh(x @ x)


def products(function, *arguments):
    """How many products a program is counted to make, and its loops of unknown length."""
    found = count(module.parse(jax.jit(function).lower(*arguments).compile()))
    return found.flops / ONE, found.unknown_loops


def test_a_bound_from_constants_is_known_although_it_is_not_folded():
    lengths = np.array([300, 700, 511], np.int32)

    def blocks(x):
        positions = lengths[:, None] + jnp.arange(4, dtype=jnp.int32)
        used = positions[:, 0]
        return jax.lax.fori_loop(0, (jnp.max(used) + 99) // 100, product, x)

    assert products(blocks, X) == (7, 0)


def test_a_loop_that_never_begins_counts_nothing():
    start, stop = np.array([4, 9], np.int32), np.array([4, 7], np.int32)

    def catch_up(x):
        def unfinished(carry):
            return jnp.any(carry[1] < stop)

        def step(carry):
            x, start = carry
            x = jax.lax.while_loop(lambda x: x.sum() < 0, lambda x: product(0, x), x)
            return product(0, x), start + 1

        return jax.lax.while_loop(unfinished, step, (x, jnp.asarray(start)))[0]

    assert products(catch_up, X) == (0, 0)


def test_an_inner_loop_is_counted_as_in_the_last_round():
    def nested(x):
        def outer(i, x):
            return jax.lax.fori_loop(0, i + 2, product, x)

        return jax.lax.fori_loop(0, 12, outer, x)

    assert products(nested, X) == (12 * 13, 0)


def test_a_bound_from_data_is_not_known():
    assert products(lambda x, n: jax.lax.fori_loop(0, n, product, x), X, 3) == (1, 1)
    assert products(lambda x: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: product(0, x), x), X) == (
        1,
        1,
    )


HEADER = "HloModule m\n\nENTRY %main () -> s32[2] {\n"


@pytest.mark.parametrize(
    "lines, value",
    [
        (["%a = s32[] constant(-7)", "%b = s32[] constant(2)", "ROOT %r = s32[] divide(%a, %b)"], -3),
        (["%a = s32[] constant(-7)", "%b = s32[] constant(2)", "ROOT %r = s32[] remainder(%a, %b)"], -1),
        (["%a = s32[] constant(-8)", "%b = s32[] constant(28)", "ROOT %r = s32[] shift-right-logical(%a, %b)"], 15),
        (["ROOT %r = s32[2,3] iota(), iota_dimension=1"], [[0, 1, 2], [0, 1, 2]]),
        (["%a = s32[3] constant({5, 6, 7})", "ROOT %r = s32[2,3] broadcast(%a), dimensions={1}"], [[5, 6, 7]] * 2),
        (["%a = s32[4] constant({5, 6, 7, 8})", "ROOT %r = s32[2] slice(%a), slice={[1:4:2]}"], [6, 8]),
        (["%a = s32[3] constant({5, 6, 7})", "ROOT %r = s32[] bitcast(%a)"], 5),
        (["%a = s32[2,2] constant({ {5, 6}, {7, 8} })", "ROOT %r = s32[2] bitcast(%a)"], None),
        (["%a = s32[3] constant({5, 6, 7})", "%i = s32[] constant(9)",
          "ROOT %r = s32[2] dynamic-slice(%a, %i), dynamic_slice_sizes={2}"], [6, 7]),
        (["%a = pred[] constant(true)", "ROOT %r = pred[] not(%a)"], 0),
        (["%a = s32[2] constant({1, 2})", "%b = s32[2] copy(%a)", "ROOT %r = pred[2] compare(%a, %b), direction=LT"],
         [0, 0]),
        (["%a = f32[] constant(2)", "ROOT %r = f32[] negate(%a)"], None),
        (["%a = s32[] custom-call(), custom_call_target=\"x\"", "ROOT %r = s32[] negate(%a)"], None),
        (["%a = s32[9] constant({...})", "ROOT %r = s32[9] negate(%a)"], None),
        (["ROOT %r = s32[9000000] iota(), iota_dimension=0"], None),
    ],
)  # fmt: skip
def test_values(lines, value):
    program = module.parse(HEADER + "".join(f"  {line}\n" for line in lines) + "}\n")
    main = program["main"]
    found = Constants(program, main)[main.root]
    assert (found is None) == (value is None)
    if value is not None:
        np.testing.assert_array_equal(found, value)
