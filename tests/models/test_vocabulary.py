from __future__ import annotations

import types

import jax
import pytest
from flax import nnx

from specjax.models import ModelConfig, Transformer, Vocabulary
from specjax.models.vocabulary import check_compatible

BASE = Vocabulary(("<s>", "a", "b", "c"), frozenset({0}))
SAME = Vocabulary(("<s>", "a", "b", "c"), frozenset({0}))
PADDED = Vocabulary(("<s>", "a", "b", "c", "<pad1>", "<pad2>"), frozenset({0, 4, 5}))
SWAPPED = Vocabulary(("<s>", "a", "c", "b"), frozenset({0}))
OTHER_SPECIAL = Vocabulary(("<s>", "a", "b", "c"), frozenset({0, 3}))


def model_with(vocabulary):
    return types.SimpleNamespace(vocabulary=vocabulary)


def test_equality_and_hash_follow_the_contents():
    assert BASE == SAME
    assert hash(BASE) == hash(SAME)
    assert BASE.digest == SAME.digest
    for other in (PADDED, SWAPPED, OTHER_SPECIAL):
        assert other != BASE
        assert BASE.digest != other.digest
    assert BASE not in ("a vocabulary", None)


def test_the_digest_separates_strings_that_join_alike():
    assert Vocabulary(("ab", "c")) != Vocabulary(("a", "bc"))
    assert Vocabulary((None,)) != Vocabulary(("None",))


def test_it_is_immutable():
    with pytest.raises(AttributeError):
        BASE.strings = ()


def test_repr_stays_short():
    assert repr(BASE).startswith("Vocabulary(4 tokens, 1 special, ")


def test_describe():
    assert BASE.describe(0) == "'<s>' (special)"
    assert BASE.describe(1) == "'a'"
    assert Vocabulary((None,)).describe(0) == "no token"


def test_first_difference():
    assert BASE.first_difference(SAME) is None
    assert BASE.first_difference(SWAPPED) == (2, "'b'", "'c'")
    assert BASE.first_difference(OTHER_SPECIAL) == (3, "'c'", "'c' (special)")


def test_a_longer_tail_is_no_difference():
    assert BASE.first_difference(PADDED) is None
    assert PADDED.first_difference(BASE) is None


def test_check_compatible_names_the_first_id_and_both_strings():
    with pytest.raises(ValueError, match=r"id 2 is 'b' in the target and 'c' in the draft"):
        check_compatible(model_with(BASE), model_with(SWAPPED))
    with pytest.raises(ValueError, match=r"id 3 is 'c' in the target and 'c' \(special\) in the draft"):
        check_compatible(model_with(BASE), model_with(OTHER_SPECIAL))


@pytest.mark.parametrize("draft", [model_with(SAME), model_with(PADDED), model_with(None), object()])
def test_check_compatible_accepts(draft):
    check_compatible(model_with(BASE), draft)
    check_compatible(draft, model_with(BASE))


def test_of_a_tokenizer(smollm2):
    vocabulary = Vocabulary.of(smollm2.tokenizer)
    assert len(vocabulary) == smollm2.config.vocab_size
    assert vocabulary.strings[2] == "<|im_end|>"
    assert vocabulary.special_ids == frozenset(range(17))
    assert vocabulary == smollm2.model.vocabulary


def test_of_a_tokenizer_with_a_gap():
    tokenizer = types.SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 2}, added_tokens_decoder={})
    assert Vocabulary.of(tokenizer).strings == ("a", None, "b")


def test_equal_vocabularies_share_a_compiled_program():
    config = ModelConfig(
        vocab_size=4,
        hidden_size=4,
        intermediate_size=4,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
    )
    traces = []

    @nnx.jit
    def forward(model):
        traces.append(model.vocabulary)
        return jax.numpy.sum(model.embedding[...])

    for vocabulary in (BASE, SAME, SWAPPED):
        model = Transformer(config, rngs=nnx.Rngs(0))
        model.vocabulary = vocabulary
        forward(model)
    assert traces == [BASE, SWAPPED]
