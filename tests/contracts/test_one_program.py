"""One compile serves every value that is not a shape."""

from __future__ import annotations

import numpy as np
import pytest

import specjax
from specjax.drafts import Model, Ngram
from specjax.testing import assert_one_compile
from tests.counting import counting_model

CONFIG = specjax.DecodeConfig(max_new_tokens=6, gamma=2)
PROMPTS = np.array([[1, 2, 3, 4], [5, 6, 7, 0]])

CALLS = {
    "prompts": {"lengths": [2, 1], "sampling": {}, "stop": {}},
    "temperature": {"lengths": [4, 3], "sampling": {"temperature": [0.0, 0.7]}, "stop": {}},
    "seed": {"lengths": [4, 3], "sampling": {"temperature": 1.0, "seed": 11}, "stop": {}},
    "filters": {
        "lengths": [4, 3],
        "sampling": {"temperature": 1.0, "top_k": 3, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
        "stop": {},
    },
    "stop set": {"lengths": [4, 3], "sampling": {}, "stop": {"eos_ids": [3, 5], "sequences": [[1, 2], [6]]}},
    "budget": {"lengths": [4, 3], "sampling": {}, "stop": {"max_new_tokens": [2, 5]}},
}


@pytest.mark.parametrize("kind", [pytest.param("ngram", marks=pytest.mark.slow), "model"])
def test_every_value_is_served_by_the_same_programs(kind):
    target = counting_model(8)
    draft = Ngram() if kind == "ngram" else Model(counting_model(8, seed=1))
    decoder = specjax.Decoder(target, draft, CONFIG)

    def generate(call):
        out = decoder.generate(
            PROMPTS,
            np.array(call["lengths"]),
            sampling=specjax.Sampling(**call["sampling"]),
            stop=specjax.Stop(**call["stop"]),
        )
        return out.tokens

    # The first call also compiles what turns arguments into arrays; each kind of setting has been seen once.
    for call in CALLS.values():
        generate(call)
    assert_one_compile(generate, [(call,) for call in CALLS.values()], programs=0)
    programs = decoder._compiled(PROMPTS.shape[1])
    assert programs.generate._cache_size() == 1


def test_another_shape_is_another_program():
    decoder = specjax.Decoder(counting_model(8), None, CONFIG)

    def generate(width):
        return decoder.generate(PROMPTS[:, :width], np.array([1, 1])).tokens

    with pytest.raises(AssertionError, match="expected any number, and then none"):
        assert_one_compile(generate, [(4,), (3,)], programs=None)
