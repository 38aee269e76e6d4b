"""Drafts by name: one grammar for pair files and every command."""

import pytest

from specjax.drafts import Fallback, LayerSkip, Model, Ngram, NoDraft, Recycling
from specjax.drafts.names import check_name, draft_named, looks_at_text_alone, model_of

SEARCH = Ngram(min_match=3)


@pytest.mark.parametrize(
    "name, draft, parts",
    (
        ("none", NoDraft(), ("none", "")),
        ("ngram", Ngram(), ("ngram", "")),
        ("recycling", Recycling(), ("recycling", "")),
        ("early-exit:3", LayerSkip((0, 1, 2)), ("early-exit:3", "")),
        ("layers:0-2,5,7-8", LayerSkip((0, 1, 2, 5, 7, 8)), ("layers:0-2,5,7-8", "")),
        ("ngram+recycling", Fallback(SEARCH, Recycling()), ("ngram+recycling", "")),
        ("ngram+early-exit:1", Fallback(SEARCH, LayerSkip((0,))), ("ngram+early-exit:1", "")),
        (
            "ngram+recycling+layers:2",
            Fallback(SEARCH, Fallback(Recycling(), LayerSkip((2,)))),
            ("ngram+recycling+layers:2", ""),
        ),
    ),
)
def test_drafts_without_weights(name, draft, parts):
    assert draft_named(name, load=None) == draft
    assert model_of(name) == parts


@pytest.mark.parametrize(
    "name, search, model",
    (
        ("organisation/small", "", "organisation/small"),
        ("ngram+path/to/small", "ngram+", "path/to/small"),
        ("path/c++/ngram", "", "path/c++/ngram"),
        ("none+ngram", "", "none+ngram"),
        ("ngram+", "", "ngram+"),
    ),
)
def test_anything_else_is_a_model(name, search, model):
    loaded = []
    draft = draft_named(name, lambda name: loaded.append(name) or name)
    assert loaded == [model]
    assert model_of(name) == (search, model)
    of_model = draft.second if search else draft
    assert isinstance(of_model, Model)
    assert of_model.module == model


@pytest.mark.parametrize("name", ("early-exit:", "early-exit:-1", "layers:", "layers:1-", "layers:1,,2"))
def test_layers_that_are_no_numbers_are_refused(name):
    with pytest.raises(ValueError, match=rf"draft is '{name}'; expected early-exit:N or layers:0-9,28,29"):
        check_name(name)


@pytest.mark.parametrize("name", ("early-exit:0", "layers:1,1", "layers:3-2"))
def test_no_layers_and_equal_layers_are_refused(name):
    with pytest.raises(ValueError, match=r"LayerSkip.layers is .* expected a tuple of different"):
        check_name(name)


def test_searches_cost_next_to_nothing():
    assert looks_at_text_alone("ngram")
    assert looks_at_text_alone("recycling")
    assert not any(map(looks_at_text_alone, ("none", "early-exit:1", "ngram+small", "small")))
