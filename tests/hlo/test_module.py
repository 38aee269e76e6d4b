"""Reading the text of compiled programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from specjax.hlo.module import Array, parse


def compiled(function, *arguments, **options):
    return jax.jit(function, **options).lower(*arguments).compile()


def test_a_program_has_an_entry_with_its_parameters():
    program = parse(compiled(lambda x, y: (x @ y, x.sum()), jnp.ones((3, 4)), jnp.ones((4, 5))))
    entry = program[program.entry]
    assert {index: item.arrays for index, item in entry.parameters.items()} == {
        0: (Array("f32", (3, 4)),),
        1: (Array("f32", (4, 5)),),
    }
    assert entry.root.arrays == (Array("f32", (3, 5)), Array("f32", ()))
    assert entry.root.is_root


def test_a_loop_names_its_condition_and_its_body():
    def count_down(x):
        return jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x - 1, x)

    program = parse(compiled(count_down, jnp.ones(7)))
    [(computation, loop)] = program.loops(program.entry)
    assert computation.instructions[loop.name] is loop
    condition, body = (program[name] for name in loop.called)
    assert condition.root.arrays[0].dtype == "pred"
    assert body.root.arrays[0] == Array("f32", (7,))


def test_donated_parameters_are_aliased():
    def both(x, y):
        return x + y, y * 2

    arguments = jnp.ones(4), jnp.ones(4)
    assert parse(compiled(both, *arguments, donate_argnums=1)).aliased_parameters == {1}
    assert parse(compiled(both, *arguments)).aliased_parameters == frozenset()


@pytest.mark.parametrize(
    "dtype, nbytes", [("bf16", 12), ("f32", 24), ("pred", 6), ("s4", 3), ("f8e4m3fn", 6), ("token", 0)]
)
def test_bytes(dtype, nbytes):
    assert Array(dtype, (2, 3)).nbytes == nbytes


def test_memory_spaces_and_attributes():
    text = """\
HloModule tiny, is_scheduled=true

ENTRY %main (p: bf16[8,16]) -> bf16[8,16] {
  %p = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="a(b" stack_frame_id=1}
  ROOT %copy.1 = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} copy(%p), backend_config={"x":[]}, window={size=3 pad=1_1}
}
"""
    [parameter, copy] = parse(text)["main"].instructions.values()
    assert [item.arrays[0].memory_space for item in (parameter, copy)] == [0, 1]
    assert copy.operands == ("p",)
    assert copy.attribute("window") == "{size=3 pad=1_1}"
    assert copy.attribute("nothing") is None


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="expected the text of an HLO module, found 'module @jit_f'"):
        parse("module @jit_f")
