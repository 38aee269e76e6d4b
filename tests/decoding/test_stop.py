"""Where a row ends: at every place of a block, whichever part the ending token plays.

The target counts: after a prompt that ends in 5 its greedy text is 6 7 8 9 ... The draft replays that text
and errs at slot `row` of each round: row r emits r accepted tokens and a replacement a round, the last row
gamma accepted tokens and a bonus token. Ends at ten places in turn fall on every slot of every part.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import FinishReason, Stop
from specjax.decoding.stop import find_end, select_stop, to_rows
from specjax.testing import Oracle, TableLM
from tests.counting import counting_model, counting_table

VOCAB, GAMMA, NEW, PAD = 40, 4, 16, 99
TARGET = counting_model(VOCAB)
PROMPTS = np.array([[0, 0, 2], [3, PAD, PAD], [2, 8, PAD], [7, 7, 7], [0, 11, PAD]], np.int32)
LENGTHS = np.array([3, 1, 2, 3, 2], np.int32)
ROWS = np.arange(5)
TEXTS = PROMPTS[ROWS, LENGTHS - 1][:, None] + 1 + np.arange(NEW)
CONFIG = specjax.DecodeConfig(
    max_new_tokens=NEW, gamma=GAMMA, pad_id=PAD, max_eos=3, max_stop=2, max_stop_len=4, debug=True
)


def run(target=TARGET, texts=TEXTS, **stop):
    draft = Oracle.of(texts, LENGTHS, wrong_at=ROWS)
    return specjax.generate(
        target, PROMPTS, LENGTHS, draft=draft, config=CONFIG, stop=Stop(**{"eos_ids": []} | stop)
    )


def assert_ends(out, lengths, reasons):
    """Texts are cut after `lengths` tokens for these reasons, and the rest is padding."""
    lengths = np.broadcast_to(lengths, 5)
    np.testing.assert_array_equal(out.lengths, lengths)
    np.testing.assert_array_equal(out.tokens, np.where(np.arange(NEW) < lengths[:, None], TEXTS, PAD))
    np.testing.assert_array_equal(out.finish_reasons, np.broadcast_to(reasons, 5))


def assert_counted(out, lengths):
    """A round of row r emits r accepted tokens and one of the target's; what was cut off counts not."""
    whole_rounds, rest = np.divmod(lengths, ROWS + 1)
    np.testing.assert_array_equal(out.stats.emitted, np.broadcast_to(lengths, 5))
    np.testing.assert_array_equal(out.stats.rounds, whole_rounds + (rest > 0))
    np.testing.assert_array_equal(out.stats.accepted, whole_rounds * ROWS + rest)
    np.testing.assert_array_equal(np.sum(out.stats.accepted_at, axis=1), out.stats.accepted)


def per_row(tokens):
    return [[int(token)] for token in tokens]


def test_without_an_end_the_budget_is_used_up():
    assert_ends(run(), NEW, FinishReason.LENGTH)


@pytest.mark.parametrize("place", range(10))
def test_eos_at_every_place(place):
    out = run(eos_ids=per_row(TEXTS[:, place]))
    assert_ends(out, place + 1, FinishReason.EOS)
    assert_counted(out, place + 1)


@pytest.mark.parametrize("place", range(10))
def test_last_token_of_a_stop_sequence_at_every_place(place):
    """Three tokens where there are as many before: from place 2 on they straddle the rounds of some row."""
    begin = max(place - 2, 0)
    out = run(sequences=[[text[begin : place + 1].tolist()] for text in TEXTS])
    assert_ends(out, place + 1, FinishReason.STOP)
    assert_counted(out, place + 1)


def test_any_of_several_eos_ids_ends_a_row():
    """The ids come in any order, and a row may meet the second before the first."""
    out = run(eos_ids=[[30, 20, 4], [4, 6, 20], [20, 30, 13], [9, 10, 11], [0, 1, 2]])
    assert_ends(out, [2, 1, 5, 2, NEW], [1, 1, 1, 1, FinishReason.LENGTH])


def test_eos_ids_may_be_one_number_or_an_array():
    expected = run(eos_ids=[12])
    assert np.any(np.asarray(expected.finish_reasons) == FinishReason.EOS)
    for eos_ids in (12, np.int32(12), np.array([12]), jnp.array([[12]] * 5), (12, 12)):
        np.testing.assert_array_equal(run(eos_ids=eos_ids).tokens, expected.tokens)


def test_eos_in_the_prompt_is_ignored():
    own_prompt = [row[:length].tolist() for row, length in zip(PROMPTS, LENGTHS, strict=True)]
    assert_ends(run(eos_ids=own_prompt), NEW, FinishReason.LENGTH)


def test_eos_ids_may_be_listed_twice_beside_one_of_the_prompt():
    last = PROMPTS[ROWS, LENGTHS - 1]
    eos_ids = np.stack([last, TEXTS[:, 5], TEXTS[:, 5]], axis=1).tolist()
    out = run(eos_ids=eos_ids)
    assert_ends(out, 6, FinishReason.EOS)
    assert_counted(out, 6)


def test_a_stop_sequence_never_begins_in_the_prompt():
    """Row 2 reads 2 8 | 9 10 and stops neither after 8 9 nor after 2 8 9 10; so do the other rows."""
    whole = [[*row[:length], *text] for row, length, text in zip(PROMPTS, LENGTHS, TEXTS, strict=True)]
    across = [
        [text[n - 1 : n + 1], text[max(n - 2, 0) : n + 2]] for text, n in zip(whole, LENGTHS, strict=True)
    ]
    assert_ends(run(sequences=across), NEW, FinishReason.LENGTH)
    behind = [[text[n : n + 2]] for text, n in zip(whole, LENGTHS, strict=True)]
    assert_ends(run(sequences=behind), 2, FinishReason.STOP)


def test_the_earliest_end_wins():
    eos = per_row(TEXTS[:, 6])
    sequences = [[text[3:6].tolist(), text[7:9].tolist()] for text in TEXTS]
    assert_ends(run(eos_ids=eos, sequences=sequences, max_new_tokens=9), 6, FinishReason.STOP)
    assert_ends(run(eos_ids=eos, sequences=sequences, max_new_tokens=4), 4, FinishReason.LENGTH)
    assert_ends(run(eos_ids=per_row(TEXTS[:, 4]), sequences=sequences), 5, FinishReason.EOS)


@pytest.mark.parametrize("place", (0, 3, 4, 9))
def test_on_one_token_eos_beats_stop_beats_length(place):
    eos, sequences = (
        per_row(TEXTS[:, place]),
        [[text[max(place - 1, 0) : place + 1].tolist()] for text in TEXTS],
    )
    budget = place + 1
    assert_ends(run(eos_ids=eos, sequences=sequences, max_new_tokens=budget), budget, FinishReason.EOS)
    assert_ends(run(sequences=sequences, max_new_tokens=budget), budget, FinishReason.STOP)
    assert_ends(run(max_new_tokens=budget), budget, FinishReason.LENGTH)


@pytest.mark.parametrize("budget", (0, 1, GAMMA - 1, GAMMA, GAMMA + 1, NEW - 1))
def test_no_row_exceeds_its_budget(budget):
    assert_ends(run(max_new_tokens=budget), budget, FinishReason.LENGTH)


def test_rows_have_budgets_of_their_own():
    for budgets in ([0, 1, GAMMA - 1, GAMMA, GAMMA + 1], [NEW, GAMMA + 1, 0, 1, GAMMA]):
        out = run(max_new_tokens=budgets)
        assert_ends(out, budgets, FinishReason.LENGTH)
        np.testing.assert_array_equal(out.stats.rounds, -(-np.array(budgets) // (ROWS + 1)))


def test_ends_of_one_row_are_no_ends_of_another():
    nothing = [[], [], [], [], []]
    for row in ROWS:
        ended = np.equal(ROWS, row)
        eos, sequences = nothing.copy(), nothing.copy()
        eos[row] = list(range(3))  # in no text
        sequences[row] = [TEXTS[row, 4:6].tolist()]
        out = run(eos_ids=eos, sequences=sequences)
        assert_ends(out, np.where(ended, 6, NEW), np.where(ended, FinishReason.STOP, FinishReason.LENGTH))
        eos[row] = [int(TEXTS[row, 2])]
        out = run(eos_ids=eos, sequences=sequences)
        assert_ends(out, np.where(ended, 3, NEW), np.where(ended, FinishReason.EOS, FinishReason.LENGTH))


def test_rows_are_selected_with_what_ends_them():
    each = Stop(eos_ids=[[1], [], [2, 3]], sequences=[[], [[5, 6]], []], max_new_tokens=np.array([7, 8, 9]))
    config = specjax.DecodeConfig(max_stop=1, max_stop_len=2)
    chosen = select_stop(each, np.array([1, 2, 1]), batch=3)
    rows, expected = to_rows(chosen, 3, config), to_rows(each, 3, config)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[np.array([1, 2, 1])]), rows, expected)

    # Three ids, or three sequences, for all rows are not one for each of three rows.
    shared = Stop(eos_ids=[1, 2, 3], sequences=[[5, 6], [7], [8]], max_new_tokens=4)
    assert select_stop(shared, np.array([2]), batch=3) == shared


def test_a_lower_budget_leaves_smaller_ones_alone():
    assert Stop().at_most(5).max_new_tokens == 5
    np.testing.assert_array_equal(Stop(max_new_tokens=[3, 9]).at_most(5).max_new_tokens, [3, 5])


def test_empty_lists_ask_for_nothing():
    for nothing in ([], [[]] * 5):
        assert_ends(run(eos_ids=nothing, sequences=nothing), NEW, FinishReason.LENGTH)


def test_a_whole_sequence_must_match():
    """Sequences that agree with the text up to their last or from their second token on."""
    almost = [[[*text[2:5].tolist(), 0], [0, *text[3:6].tolist()]] for text in TEXTS]
    assert_ends(run(sequences=almost), NEW, FinishReason.LENGTH)


def test_a_sequence_that_begins_again_inside_itself_is_found():
    """3 3 4 in 3 | 3 3 4: a search that starts over after the first mismatch would miss it."""
    stop = to_rows(Stop(eos_ids=[], sequences=[[3, 3, 4]]), 1, CONFIG)
    emitted, reason = find_end(
        stop, jnp.array([[3, 3, 4]]), jnp.array([3]), jnp.array([[-1, -1, 3]]), jnp.array([1])
    )
    assert (int(emitted[0]), int(reason[0])) == (3, FinishReason.STOP)


def test_ends_in_the_unaccepted_rest_of_a_block_do_not_count():
    stop = to_rows(Stop(eos_ids=[9], sequences=[[7, 8]]), 1, CONFIG)
    history = jnp.full((1, 3), -1)
    for count in (0, 1):
        emitted, reason = find_end(stop, jnp.array([[7, 8, 9]]), jnp.array([count]), history, jnp.array([0]))
        assert (int(emitted[0]), int(reason[0])) == (count, FinishReason.RUNNING)


def test_a_block_that_is_longer_than_the_budget_is_cut():
    """Even where a draft proposes more than there is room for; an end behind the budget is none."""
    stop = to_rows(Stop(eos_ids=[9], sequences=[], max_new_tokens=5), 1, CONFIG)
    emitted, reason = find_end(
        stop, jnp.array([[7, 8, 9]]), jnp.array([3]), jnp.full((1, 3), -1), jnp.array([3])
    )
    assert (int(emitted[0]), int(reason[0])) == (2, FinishReason.LENGTH)


def test_by_default_the_models_own_eos_ids_end_a_row():
    target = TableLM(counting_table(VOCAB), eos_ids=(12, 30))
    draft = Oracle.of(TEXTS, LENGTHS, wrong_at=ROWS)
    out = specjax.generate(target, PROMPTS, LENGTHS, draft=draft, config=CONFIG)
    assert_ends(out, [10, 9, 4, 5, 1], FinishReason.EOS)


def test_what_the_model_makes_of_the_text_after_an_end_does_not_matter():
    """A model may answer NaN after its EOS; a draft that goes on behind it must not make that an error."""
    eos = 12
    table = counting_table(VOCAB)
    table[:, eos] = np.nan
    assert_ends(run(TableLM(table), eos_ids=[eos]), [10, 9, 4, 5, 1], FinishReason.EOS)
    assert_ends(run(TableLM(table), sequences=[[eos]]), [10, 9, 4, 5, 1], FinishReason.STOP)
    # Without that end, the same rows end with an error, and keep what was committed before.
    out = run(TableLM(table))
    np.testing.assert_array_equal(out.finish_reasons, FinishReason.ERROR)
    kept = np.asarray(out.lengths)
    assert np.all(kept <= [10, 9, 4, 5, 1])
    np.testing.assert_array_equal(out.tokens, np.where(np.arange(NEW) < kept[:, None], TEXTS, PAD))
