"""The page on exactness is one script, and its text states no number that the script does not hold it to."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "exactness.md"
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?(?:/\d+)?)"
TUPLE = rf"\({NUMBER}(?:, {NUMBER})+\)"
CLAIM = re.compile(rf"{TUPLE}|(?<![\w.]){NUMBER}(?!\w)")
NOT_A_CLAIM = re.compile(r"arXiv \d+\.\d+|^\d+\. ", re.MULTILINE)  # citations, numbers of list items


def split(text):
    """Prose and code in turns, first and last prose. Code keeps the line numbers that it has on the page."""
    parts = re.split(r"^```(?:python)?\n", text, flags=re.MULTILINE)
    assert len(parts) == 1 + 2 * text.count("```python\n"), "a fence that is open or of another language"
    starts = [sum(part.count("\n") + 1 for part in parts[:index]) for index in range(len(parts))]
    return parts[::2], ["\n" * starts[index] + parts[index] for index in range(1, len(parts), 2)]


def find(claim, code):
    """Where numbers stand in code, spelled as in prose."""
    claim = re.sub(r",(?=\d{3})", "", claim)
    if claim.startswith("("):
        return re.search(rf"[\[(]{re.escape(claim[1:-1])}[\])]", code)
    return re.search(rf"(?<![\w.])(?<!\d/){re.escape(claim)}(?![\w.]|/\d)", code)


def unchecked_claims(text):
    """The numbers of a text that the block after it does not have, decimals and fractions in the same order.

    Integers may stand anywhere in the block, tuples in any block.
    """
    texts, blocks = split(text)
    # 1 / 3 and 1_000 become 1/3 and 1000.
    blocks = [re.sub(r"(?<=\d)_(?=\d)|#.*| (?=/)|(?<=/) ", "", block) for block in blocks]
    for prose, block in zip(texts, [*blocks, ""], strict=True):
        rest = block
        for claim in CLAIM.findall(NOT_A_CLAIM.sub("", prose)):
            if claim.isdigit():
                found = find(claim, block)
            elif found := find(claim, rest):
                rest = rest[found.end() :]
            elif claim.startswith("("):
                found = find(claim, "".join(blocks))
            if not found:
                yield claim


def run(text, name):
    _, blocks = split(text)
    assert blocks, f"{name} has no code"
    namespace = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, name, "exec", dont_inherit=True), namespace)


def test_the_code_runs():
    run(PAGE.read_text(encoding="utf-8"), str(PAGE))


def test_the_text_states_only_numbers_that_the_code_after_it_checks():
    assert list(unchecked_claims(PAGE.read_text(encoding="utf-8"))) == []


GOOD = """The law is (0.5, 0.25, 0.25). A and B have 0.75, B and C 1/2. All 1,000 say 3 (arXiv 1234.56789).

```python
law = [0.5, 0.25, 0.25]
assert law[0] + law[1] == 0.75
assert law[1] + law[2] == 1 / 2
assert len(law) == 3 < 1_000
```

That is all.
"""


def test_a_page_without_code_fails():
    with pytest.raises(AssertionError, match="no code"):
        run("One half is 0.5.\n", "page")


@pytest.mark.parametrize(
    "right, wrong, found",
    (
        ("(0.5, 0.25", "(0.5, 0.75", "(0.5, 0.75, 0.25)"),
        ("C 1/2", "C 1/3", "1/3"),
        ("0.75, B and C 1/2", "1/2, B and C 0.75", "0.75"),
        ("1,000", "1,001", "1,001"),
        ("say 3", "say 4", "4"),
        ("all.", "7.", "7"),
    ),
)
def test_a_wrong_number_in_the_text_is_found(right, wrong, found):
    assert list(unchecked_claims(GOOD)) == []
    assert list(unchecked_claims(GOOD.replace(right, wrong))) == [found]


def test_a_wrong_number_in_the_code_is_found():
    run(GOOD, "page")
    with pytest.raises(AssertionError):
        run(GOOD.replace("== 0.75", "== 0.8"), "page")
