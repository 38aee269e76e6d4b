import json

import pytest
from rich.console import Console

from specjax.text.comparison import Comparison
from specjax.text.generation import Generation
from specjax.text.prompts import BadLine, Prompt
from specjax.text.report import Entry, Report, describe


def generation(**changes):
    fields = {
        "text": "text",
        "token_ids": [1, 2, 3, 4, 5, 6],
        "finish_reason": "eos",
        "prompt_tokens": 9,
        "first_token_seconds": 0.75,
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
        "emitted": 6,
        "rounds": 3,
        "drafted_at": [2, 2, 0],
        "accepted_at": [2, 1, 0],
    }
    return Generation(**(fields | changes))


def comparison(ratio=2.0, identical=True, first_difference=None, several_widths_difference=None):
    return Comparison(
        identical=identical,
        first_difference=first_difference,
        several_widths_difference=several_widths_difference,
        speculative=20.0,
        plain_equal_width=8.0,
        plain=10.0,
        ratio=ratio,
    )


def report(*entries, **fields):
    return Report(model="m", dtype="float32", draft="ngram", gamma=3, entries=list(entries), **fields)


def entry(name="first", **fields):
    return Entry(prompt=Prompt(content="p", name=name, line=4), **({"generation": generation()} | fields))


def printed(report):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.table())
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_a_table_has_a_line_for_each_prompt_and_one_for_all():
    slow = generation(decode_seconds=10.0, finish_reason="length")
    rows = printed(report(entry(), entry("second", generation=slow)))
    assert rows[3] == ["first", "6", "3", "2.00", "0.75", "0.50", "2.00", "3.0", "eos"]
    assert rows[4] == ["second", "6", "3", "2.00", "0.75", "0.50", "10.00", "0.6", "length"]
    assert rows[-1] == ["all", "12", "6", "2.00", "1.00", "12.00", "1.0"]


def test_a_comparison_adds_its_columns():
    rows = printed(
        report(entry(comparison=comparison(2.0)), entry("b", comparison=comparison(8.0, False, 3)))
    )
    assert rows[3][-3:] == ["2.00", "yes", "eos"]
    assert rows[4][-3:] == ["8.00", "no", "eos"]
    assert rows[-1][-2:] == ["4.00", "no"]


def test_acceptance_counts_live_draft_tokens_at_each_position():
    other = generation(drafted_at=[2, 0, 0], accepted_at=[0, 0, 0])
    both = report(
        entry(), entry(generation=other), entry(generation=generation(drafted_at=[], accepted_at=[]))
    )
    assert both.acceptance() == [0.5, 0.5, None]
    assert "acceptance at each draft position: 0.50 0.50 -" in both.notes()


def test_a_report_without_entries():
    assert printed(report())[1][0] == "tokens"
    assert report().acceptance() == []
    assert report().to_json()["ratio"] is None


@pytest.mark.parametrize(
    "broken",
    [
        report(entry(generation=generation(finish_reason="error"))),
        report(entry(generation=generation(violations="row 0: ..."))),
        report(entry(comparison=comparison(identical=False, first_difference=0))),
        report(entry(), bad_lines=[BadLine(3, "not JSON")]),
    ],
)
def test_what_makes_a_run_fail(broken):
    assert not broken.ok
    assert report(entry(comparison=comparison())).ok
    assert report(entry(comparison=comparison(identical=None))).ok


def test_json():
    whole = report(
        entry(comparison=comparison()),
        draft_failure="gone",
        compile_seconds=3.0,
        bad_lines=[BadLine(3, "why")],
    )
    record = json.loads(json.dumps(whole.to_json()))
    assert record["mean_tokens_per_round"] == 2.0
    assert record["decode_tokens_per_second"] == 3.0
    assert record["bad_lines"] == [{"line": 3, "reason": "why"}]
    assert (record["ratio"], record["identical"], record["draft_failure"]) == (2.0, True, "gone")
    one = json.loads(json.dumps(whole.entries[0].to_json()))
    assert (one["id"], one["line"], one["text"], one["rounds"]) == ("first", 4, "text", 3)
    assert one["comparison"]["ratio"] == 2.0


def test_notes_tell_of_failures():
    notes = report(entry(generation=generation(draft_failures=2)), draft_failure="no such file").notes()
    assert "decoded plainly, because the draft failed: no such file" in notes
    assert "rounds in which the draft's logits were not finite: 2" in notes


def test_a_comparison_in_one_line():
    assert describe(comparison()).startswith(
        "identical: yes | ratio: 2.00 (tokens/s: speculative 20.0, plain 10.0"
    )
    assert "identical: no, first at generated token 7" in describe(comparison(1.0, False, 7))
    assert "unknown" in describe(comparison(1.0, False, 7))
    rounded = describe(comparison(1.0, True, None, 7))
    assert "identical: yes at one width; with several widths not from generated token 7 on" in rounded
    assert "sampled" in describe(comparison(1.0, None))
