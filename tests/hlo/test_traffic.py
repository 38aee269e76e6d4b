"""Counting on real programs whose traffic is known by hand, and on the text of a TPU program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from specjax.hlo import module, traffic
from specjax.hlo.traffic import Traffic

# What a TPU program has and a CPU program has not: on-chip memory, prefetches, products as convolutions. A
# 4 x 64 x 8 bfloat16 cache is read by blocks of 16 slots, as often as a carried bound says, and one row of it
# is overwritten in place.
TPU = """\
HloModule jit_step, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, entry_computation_layout={()}

%sliced (p0: bf16[4,64,8], p1: s32[]) -> bf16[4,16,8] {
  %p0 = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %slice = bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(1)} dynamic-slice(%p0, %zero, %p1, %zero)
}

%updated (p0.1: bf16[4,64,8], p1.1: bf16[4,1,8]) -> bf16[4,64,8] {
  %p0.1 = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1.1 = bf16[4,1,8]{2,1,0:T(8,128)(2,1)S(1)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %dus = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%p0.1, %p1.1, %zero.1, %zero.1, %zero.1)
  ROOT %renamed = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} bitcast(%dus)
}

%test (carried: (s32[], s32[], bf16[4,64,8])) -> pred[] {
  %carried = (s32[]{:T(128)}, s32[]{:T(128)}, bf16[4,64,8]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carried), index=0
  %n = s32[]{:T(128)} get-tuple-element(%carried), index=1
  ROOT %less = pred[]{:T(512)} compare(%i, %n), direction=LT
}

%body (carried.1: (s32[], s32[], bf16[4,64,8])) -> (s32[], s32[], bf16[4,64,8]) {
  %carried.1 = (s32[]{:T(128)}, s32[]{:T(128)}, bf16[4,64,8]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %i.1 = s32[]{:T(128)S(6)} get-tuple-element(%carried.1), index=0
  %cache = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} get-tuple-element(%carried.1), index=2
  %block = bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(1)} fusion(%cache, %i.1), kind=kLoop, calls=%sliced
  ROOT %again = (s32[]{:T(128)}, s32[]{:T(128)}, bf16[4,64,8]{2,1,0:T(8,128)(2,1)}) tuple(%i.1, %i.1, %cache)
}

ENTRY %main (cache.1: bf16[4,64,8], weight: bf16[32,8], x: f32[5,8]) -> bf16[4,64,8] {
  %cache.1 = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} parameter(0)
  %weight = bf16[32,8]{1,0:T(8,128)(2,1)} parameter(1)
  %x = f32[5,8]{1,0:T(8,128)S(1)} parameter(2)
  %start = s32[]{:T(128)} constant(0)
  %bound = s32[]{:T(128)} constant(3)
  %bound.copy = s32[]{:T(128)S(6)} copy(%bound)
  %prefetch = (bf16[32,8]{1,0:T(8,128)(2,1)S(1)}, bf16[32,8]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%weight)
  %prefetched = bf16[32,8]{1,0:T(8,128)(2,1)S(1)} copy-done(%prefetch)
  %product = f32[5,32]{1,0:T(8,128)S(1)} convolution(%x, %prefetched), dim_labels=bf_oi->bf
  %a = f32[2,3,5,9]{3,2,1,0:T(8,128)S(1)} constant({...})
  %b = f32[2,3,7,9]{3,2,1,0:T(8,128)S(1)} constant({...})
  %batched = f32[2,3,5,7]{3,2,1,0:T(8,128)S(1)} convolution(%a, %b), window={size=2x3 stride=1x2 lhs_dilate=2x3}, dim_labels=01bf_01oi->01bf
  %init = (s32[]{:T(128)}, s32[]{:T(128)}, bf16[4,64,8]{2,1,0:T(8,128)(2,1)}) tuple(%start, %bound.copy, %cache.1)
  %loop = (s32[]{:T(128)}, s32[]{:T(128)}, bf16[4,64,8]{2,1,0:T(8,128)(2,1)}) while(%init), condition=%test, body=%body
  %last = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=2
  %row = bf16[4,1,8]{2,1,0:T(8,128)(2,1)S(1)} constant({...})
  ROOT %written = bf16[4,64,8]{2,1,0:T(8,128)(2,1)} fusion(%last, %row), kind=kLoop, calls=%updated
}
"""


def counted(function, *arguments):
    return traffic.count(module.parse(jax.jit(function).lower(*arguments).compile()))


def test_a_tpu_program():
    weight, block, row = 2 * 32 * 8, 2 * 4 * 16 * 8, 2 * 4 * 1 * 8
    assert traffic.count(module.parse(TPU)) == Traffic(
        read_bytes=weight + 3 * block + 3 * 2 * 4 + 4,  # the loop's test reads two numbers; one is copied
        written_bytes=row + 3,
        flops=2 * 5 * 8 * 32 + 2 * (2 * 3) * 5 * 9 * 7,  # the second product is a batch of 2 x 3
    )


def test_a_bound_that_is_computed_is_unknown():
    text = TPU.replace("s32[]{:T(128)} constant(3)", 's32[]{:T(128)} custom-call(), custom_call_target="x"')
    found = traffic.count(module.parse(text))
    assert (found.unknown_loops, found.read_bytes) == (1, 2 * 32 * 8 + 2 * 4 * 16 * 8 + 2 * 4 + 4)


def test_products_of_a_known_size():
    x, w = jnp.ones((6, 10)), jnp.ones((10, 14))
    assert counted(lambda x, w: x @ w, x, w).flops == 2 * 6 * 10 * 14
    batched = jnp.ones((3, 6, 10)), jnp.ones((3, 10, 14))
    assert counted(lambda x, w: jnp.einsum("bij,bjk->bik", x, w), *batched).flops == 3 * 2 * 6 * 10 * 14


def test_a_loop_counts_its_body_as_often_as_it_runs():
    def scanned(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    x, weights = jnp.ones((8, 16)), jnp.ones((5, 16, 16))
    found = counted(scanned, x, weights)
    assert found.flops == 5 * 2 * 8 * 16 * 16
    assert found.unknown_loops == 0


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    def looped(x, n):
        return jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x), x)

    found = counted(looped, jnp.ones((8, 8)), 3)
    assert found.flops == 2 * 8**3
    assert found.unknown_loops == 1


def test_a_slice_reads_what_it_takes_and_an_update_touches_what_it_writes():
    big, row = jnp.ones((1024, 64)), jnp.ones((1, 64))
    sliced = counted(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 1) * 2, big, 3)
    assert sliced.total_bytes < 10 * row.nbytes

    def write(x, row):
        return jax.lax.fori_loop(0, 100, lambda i, x: jax.lax.dynamic_update_slice(x, row + i, (i, 0)), x)

    executable = jax.jit(write, donate_argnums=0).lower(big, row).compile()
    assert traffic.count(module.parse(executable)).total_bytes < 100 * 10 * row.nbytes


def test_a_conditional_counts_its_costliest_branch():
    def either(which, x):
        return jax.lax.cond(which, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert counted(either, True, jnp.ones((16, 16))).flops == 2 * 2 * 16**3


def test_traffic_adds_and_multiplies():
    one = Traffic(read_bytes=1, written_bytes=2, flops=3, collective_bytes=4, unknown_loops=1)
    assert one + one == Traffic(read_bytes=2, written_bytes=4, flops=6, collective_bytes=8, unknown_loops=2)
    assert one.times(3) == Traffic(
        read_bytes=3, written_bytes=6, flops=9, collective_bytes=12, unknown_loops=1
    )
    assert one.total_bytes == 3


COLLECTIVE = """HloModule m, num_partitions=8

ENTRY %main (x: f32[16]) -> f32[16] {{
  %x = f32[16] parameter(0)
  ROOT %r = f32[16] {opcode}(%x), channel_id=1, {groups}dimensions={{0}}
}}
"""


@pytest.mark.parametrize(
    "groups, size",
    [
        ("replica_groups={{0,1},{2,3}}, ", 2),
        ("replica_groups=[2,4]<=[8], ", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0), ", 2),
        ("replica_groups=mesh['axis_0'=8], ", 8),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, ", 4),
        ("replica_groups={}, ", 8),
        ("", 8),
    ],
)
def test_chips_of_a_ring_send_what_the_size_of_their_own_group_says(groups, size):
    for opcode, share in (
        ("all-gather", size - 1),
        ("all-reduce", 2 * (size - 1) / size),
        ("reduce-scatter", (size - 1) / size),
        ("collective-permute", 1),
        ("negate", 0),
    ):
        text = COLLECTIVE.format(opcode=opcode, groups=groups)
        assert traffic.count(module.parse(text)).collective_bytes == share * 64, opcode


TWO_PRODUCTS = """HloModule two_products

ENTRY %main (x: f32[64,128], a: f32[128,256], b: f32[256,8]) -> f32[64,8] {
  %x = f32[64,128] parameter(0)
  %a = f32[128,256] parameter(1)
  %b = f32[256,8] parameter(2)
  %between = f32[64,256] dot(%x, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %renamed = f32[64,256] bitcast(%between)
  ROOT %answer = f32[64,8] dot(%renamed, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_cache_keeps_results_that_fit():
    """What lies between two products stays; arguments and the answer do not, however small they are."""
    program = module.parse(TWO_PRODUCTS)
    arguments, between, answer = 4 * (64 * 128 + 128 * 256 + 256 * 8), 4 * 64 * 256, 4 * 64 * 8
    for size, moved in (
        (0, arguments + 2 * between + answer),
        (between - 1, arguments + 2 * between + answer),
        (between, arguments + answer),
        (1e9, arguments + answer),
    ):
        assert traffic.count(program, size).total_bytes == moved
