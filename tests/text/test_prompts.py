import pytest

from specjax.text.prompts import Prompt, encode, read_jsonl
from tests.text.tiny import tiny_lm

GOOD = b"""\
{"prompt": "one"}

{"id": "second", "messages": [{"role": "user", "content": "two"}]}
{"id": 3, "turns": ["three", "four"], "category": "writing"}
"""


def read(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    return read_jsonl(path)


def test_the_three_kinds_of_lines(tmp_path):
    prompts, bad_lines = read(tmp_path, GOOD)
    assert bad_lines == []
    assert [prompt.content for prompt in prompts] == ["one", [{"role": "user", "content": "two"}], "three"]
    assert [prompt.name for prompt in prompts] == ["line 1", "second", "3"]
    assert [prompt.line for prompt in prompts] == [1, 3, 4]


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"{", "not JSON: .* at column 2"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'["prompt"]', "is a JSON list; expected an object"),
        (b'{"text": "x"}', "none of prompt, messages and turns; its keys are text"),
        (b'{"prompt": 3}', "prompt is 3; expected a text"),
        (b'{"prompt": " "}', "expected a text"),
        (b'{"turns": []}', r"turns is \[\]"),
        (b'{"turns": [1]}', r"turns\[0\] is 1"),
        (b'{"messages": {}}', "expected a list"),
        (b'{"messages": [{"role": "user"}]}', r"messages\[0\] is .*role and content"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_goes_on(tmp_path, line, reason):
    prompts, bad_lines = read(tmp_path, b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}')
    assert [prompt.content for prompt in prompts] == ["a", "b"]
    assert [bad.line for bad in bad_lines] == [2]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(bad_lines[0].reason)


def encoded(content, *, lm=None, raw=False, system=None, longest=None):
    lm = lm or tiny_lm()
    ids = encode(lm, Prompt(content=content), raw=raw, system=system, longest=longest)
    return lm.decode(ids, skip_special_tokens=False)


def test_the_chat_template_is_used_where_there_is_one():
    assert encoded("hi") == "<turn>user: hi</turn><turn>assistant: "
    assert encoded("hi", system="be brief").startswith("<turn>system: be brief</turn><turn>user: hi")
    assert encoded([{"role": "user", "content": "hi"}]) == encoded("hi")
    assert encoded("hi", raw=True) == "hi"
    assert encoded("hi", lm=tiny_lm(template=None)) == "hi"


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"content": [{"role": "user", "content": "hi"}], "raw": True}, "--raw"),
        ({"content": "hi", "system": "x", "lm": tiny_lm(template=None)}, "no chat template"),
        ({"content": "hello", "raw": True, "longest": 4}, "5 tokens.* 4 fit"),
        ({"content": "", "raw": True}, "no tokens"),
    ],
)
def test_prompts_that_do_not_suit_the_model(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        encoded(**arguments)
