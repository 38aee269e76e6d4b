from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from specjax.models import tokenizer

PATH = Path("model.gguf")
TEXTS = [
    "Plain words, and 3 numbers: 12345.",
    "  leading, trailing and\ttabs \n\n newlines\r\n  ",
    "Grüße aus Köln — «naïve café» … 日本語 العربية עברית",
    "👩‍👩‍👧‍👦 flags 🇩🇪 and skin 👍🏽",
    "def f(x):\n    return {'a': x**2}  # don't, I'LL",
    "e\u0301 is not \u00e9; zero\u200bwidth; nul \x00; bom \ufeff; last \U0010ffff",
    "<|im_start|>user\nnot a turn<|im_end|>",
    "",
]


def refuses(*fragments):
    return pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, fragments)))


def metadata(**changes):
    """A byte-level vocabulary: a control and a user-defined token, all bytes, two merges; None drops one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|end|>", "<tool>", *letters, "he", "hel"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, 4] + [1] * (len(tokens) - 2),
        "merges": ["h e", "he l"],
        "bos_token_id": 0,
        "eos_token_id": 0,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def pieces(pre, text):
    backend = tokenizer.from_gguf(PATH, metadata(pre=pre)).backend_tokenizer
    return [piece.replace("Ġ", " ") for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


# The default model's tokenizer.


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(smollm2, text):
    assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


def test_special_tokens(smollm2):
    assert smollm2.encode("<|im_start|>user<|im_end|>") == [1, 4093, 2]
    assert smollm2.decode([1, 4093, 2]) == "user"
    assert smollm2.tokenizer.eos_token_id == 2
    assert smollm2.tokenizer.bos_token_id == 1


def test_digits_stand_alone(smollm2):
    assert len(smollm2.encode("2026")) == 4


def test_saved_and_read_again_it_is_the_same(smollm2, tmp_path):
    smollm2.tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").exists()
    again = tokenizer.from_directory(tmp_path)
    assert again.get_vocab() == smollm2.tokenizer.get_vocab()
    assert again.chat_template == smollm2.tokenizer.chat_template
    for text in TEXTS:
        assert again(text)["input_ids"] == smollm2.encode(text)


# From GGUF metadata.


def test_merges_and_special_tokens_of_metadata():
    made = tokenizer.from_gguf(PATH, metadata())
    vocabulary = made.get_vocab()
    ids = made("hello<tool><|end|>")["input_ids"]
    assert ids == [vocabulary["hel"], vocabulary["l"], vocabulary["o"], 1, 0]
    assert made.decode(ids, skip_special_tokens=True) == "hello<tool>"
    assert made.eos_token == "<|end|>"
    assert not made.chat_template


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", [text for text in TEXTS if "e\u0301" not in text])
def test_every_kind_round_trips(pre, text):
    made = tokenizer.from_gguf(PATH, metadata(pre=pre, bos_token_id=None))
    assert made.decode(made(text)["input_ids"]) == text


@pytest.mark.parametrize(
    "pre, expected",
    [
        ("gpt-2", ["a", " 12345", " b", "'s", " I", "'", "LL"]),
        ("smollm", ["a", " ", "1", "2", "3", "4", "5", " b", "'s", " I", "'", "LL"]),
        ("llama-bpe", ["a", " ", "123", "45", " b", "'s", " I", "'LL"]),
        ("qwen2", ["a", " ", "1", "2", "3", "4", "5", " b", "'s", " I", "'LL"]),
    ],
)
def test_every_kind_cuts_words_its_own_way(pre, expected):
    assert pieces(pre, "a 12345 b's I'LL") == expected


def test_qwen2_composes_characters():
    made = tokenizer.from_gguf(PATH, metadata(pre="qwen2"))
    assert made("e\u0301")["input_ids"] == made("\u00e9")["input_ids"]


@pytest.mark.parametrize(
    "pre, add, expected", [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", True, True)]
)
def test_bos_token(pre, add, expected):
    made = tokenizer.from_gguf(PATH, metadata(pre=pre, add_bos_token=add))
    assert (made("a")["input_ids"][0] == 0) is expected


def test_llama3_takes_whole_words_that_no_merge_builds():
    whole = metadata()["tokenizer.ggml.tokens"] + ["xyz"]
    made = tokenizer.from_gguf(PATH, metadata(pre="llama-bpe", tokens=whole, add_bos_token=False))
    assert made("xyz")["input_ids"] == [len(whole) - 1]


@pytest.mark.parametrize(
    "changes, fragments",
    [
        ({"model": "llama"}, ["tokenizer.ggml.model='llama'", "gpt2", "directory"]),
        ({"model": None}, ["tokenizer.ggml.model=None"]),
        ({"pre": "tekken"}, ["tokenizer.ggml.pre='tekken'", "smollm, llama-bpe, qwen2"]),
        ({"pre": None}, ["tokenizer.ggml.pre='default'"]),
        ({"tokens": None}, ["tokenizer.ggml.tokens is missing"]),
        ({"merges": None}, ["tokenizer.ggml.merges is missing"]),
        ({"merges": [1, 2]}, ["tokenizer.ggml.merges", "list of strings"]),
        ({"merges": ["zz yy"]}, ["tokenizer.ggml.merges do not fit"]),
        ({"tokens": ["a", "b", "a"]}, ["tokenizer.ggml.tokens holds 'a' twice"]),
        ({"eos_token_id": 5000}, ["tokenizer.ggml.eos_token_id=5000", "below 260"]),
    ],
)
def test_unusable_metadata_is_refused_by_file_key_and_value(changes, fragments):
    with refuses("model.gguf", *fragments):
        tokenizer.from_gguf(PATH, metadata(**changes))


# From a directory.


def test_a_directory_without_a_tokenizer(tmp_path):
    with refuses(str(tmp_path), "no tokenizer", "tokenizer.json"):
        tokenizer.from_directory(tmp_path)


def test_a_damaged_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with refuses(str(tmp_path), "cannot read the tokenizer"):
        tokenizer.from_directory(tmp_path)


def test_a_chat_template_in_the_configuration(tmp_path):
    made = tokenizer.from_gguf(PATH, metadata())
    made.chat_template = "{{ messages[0]['content'] }}!"
    made.save_pretrained(tmp_path, save_jinja_files=False)
    assert not (tmp_path / "chat_template.jinja").exists()
    again = tokenizer.from_directory(tmp_path)
    assert again.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def test_importing_transformers_gives_no_advice_and_leaves_the_environment_alone(tmp_path):
    tokenizer.from_gguf(PATH, metadata()).save_pretrained(tmp_path)
    script = (
        "import os, sys; from specjax.models import tokenizer; before = dict(os.environ); "
        "tokenizer.from_directory(sys.argv[1]); assert os.environ == before"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "PyTorch" not in result.stderr + result.stdout
