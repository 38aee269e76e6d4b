import dataclasses

import pytest

from specjax.decoding import DecodeConfig, Decoder, Stop
from specjax.drafts import Ngram, NoDraft
from specjax.text.comparison import Ways, compare, first_difference
from specjax.text.generation import Runner
from tests.text.tiny import tiny_lm

PROMPT = tiny_lm().encode("row, row, row your boat")


@dataclasses.dataclass
class FakeRunner:
    """Yields the given tokens in the given times, one of them each time it is measured."""

    tokens: list[int]
    seconds: list[float]

    def measure(self, ids):
        return self.tokens, self.seconds.pop(0)


def ways(*, speculative=(1, 2, 3), plain=(1, 2, 3), plain_seconds=8.0, one_width=None, same_tokens=True):
    return Ways(
        same_tokens=same_tokens,
        speculative=FakeRunner(list(speculative), [1.0, 1.0, 10.0]),
        plain_equal_width=FakeRunner(list(plain), [plain_seconds]),
        plain=FakeRunner([1, 2, 3], [4.0, 2.0, 4.0]),
        speculative_one_width=None if one_width is None else FakeRunner(list(one_width), [1.0]),
    )


def test_the_ratio_is_to_the_faster_plain_way_and_the_median_of_the_repeats():
    comparison = compare(ways(), PROMPT, repeats=3)
    # 4/1, 2/1 and 4/10: the one that was disturbed is outvoted.
    assert comparison.ratio == 2.0
    assert (comparison.speculative, comparison.plain, comparison.plain_equal_width) == (3.0, 0.75, 0.375)
    assert comparison.identical
    assert comparison.first_difference is None


def test_the_ratio_is_never_to_the_slower_plain_way():
    assert compare(ways(plain_seconds=1.5), PROMPT, repeats=3).ratio == 1.5


@pytest.mark.parametrize("plain, index", [((1, 5, 3), 1), ((1, 2), 2), ((1, 2, 3, 4), 3)])
def test_a_difference_is_found_and_placed(plain, index):
    comparison = compare(ways(plain=plain), PROMPT, repeats=1)
    assert comparison.identical is False
    assert comparison.first_difference == index


def test_rounds_of_one_width_tell_rounding_from_a_fault():
    rounded = compare(ways(plain=(1, 5, 3), one_width=(1, 5, 3)), PROMPT, repeats=1)
    assert (rounded.identical, rounded.first_difference, rounded.several_widths_difference) == (True, None, 1)
    wrong = compare(ways(plain=(1, 5, 3), one_width=(1, 5, 4)), PROMPT, repeats=1)
    assert (wrong.identical, wrong.first_difference, wrong.several_widths_difference) == (False, 2, 1)


def test_samples_are_not_asked_to_be_identical():
    comparison = compare(ways(plain=(7, 8, 9), same_tokens=False), PROMPT, repeats=1)
    assert comparison.identical is None
    assert comparison.first_difference is None


def test_speculative_decoding_is_identical_to_plain_decoding():
    lm = tiny_lm()

    def runner(draft, verify_widths=()):
        config = DecodeConfig(max_new_tokens=20, gamma=3, verify_widths=verify_widths)
        return Runner(
            decoder=Decoder(lm.model, draft, config),
            decode=lm.decode,
            prompt_width=64,
            stop=Stop(eos_ids=[]),
        )

    comparison = compare(
        Ways(
            same_tokens=True,
            speculative=runner(Ngram(), (2, 3)),
            plain_equal_width=runner(NoDraft(width=3)),
            plain=runner(NoDraft()),
            speculative_one_width=runner(Ngram()),
        ),
        PROMPT,
        repeats=1,
    )
    assert comparison.identical
    assert comparison.ratio > 0


def test_first_difference():
    assert first_difference([], []) is None
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [2, 2]) == 0
    assert first_difference([1], [1, 0]) == 1
