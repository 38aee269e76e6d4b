from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
import transformers
from flax import nnx
from safetensors.numpy import load_file, save_file
from tokenizers import models

import specjax
from specjax.models import LanguageModel, default_model, hub, load


def write_tokenizer(directory, size=128, chat_template=None):
    """A tokenizer of `size` words: <s>, then w1, w2, ..."""
    vocabulary = {"<s>": 0} | {f"w{index}": index for index in range(1, size)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>")
    wrapped.chat_template = chat_template
    wrapped.save_pretrained(directory)


@pytest.fixture
def directory(tmp_path, goldens):
    """A whole checkpoint directory, of a base model."""
    path = shutil.copytree(goldens / "tiny_qwen2", tmp_path / "tiny")
    write_tokenizer(path)
    return path


def refuses(*fragments, error=ValueError):
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, fragments)))


# The parts of a loaded model.


@pytest.mark.smoke
def test_a_directory(directory, goldens, score):
    lm = load(directory, dtype="float32")
    assert isinstance(lm, LanguageModel)
    assert (lm.name, lm.config.num_layers) == (str(directory), 2)
    assert len(lm.model.vocabulary) == 128
    assert lm.model.eos_ids == (2,)
    expected = json.loads((goldens / "tiny_qwen2/expected.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(score(lm.model, expected["input_ids"]), expected["logits"], atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype(directory, dtype):
    arrays = jax.tree.leaves(nnx.state(load(directory, dtype=dtype).model))
    assert {array.dtype.name for array in arrays} == {dtype}


def test_a_path_object_and_a_path_from_home(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    assert load("~/tiny", dtype="float32").config == load(directory, dtype="float32").config


def test_encode_and_decode(directory):
    lm = load(directory, dtype="float32")
    assert lm.encode("w5 w7") == [5, 7]
    assert lm.decode([5, 0, 7]) == "w5 w7"
    assert lm.decode(jnp.array([5, 0]), skip_special_tokens=False) == "w5 <s>"
    assert lm.decode(np.array([], np.int32)) == ""


def test_a_base_model_has_no_chat(directory):
    lm = load(directory, dtype="float32")
    assert not lm.instruct
    with refuses(str(directory), "no chat template", "encode()"):
        lm.encode_chat("w5")


def test_chat(directory):
    template = (
        "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"
    )
    write_tokenizer(directory, chat_template=template)
    lm = load(directory, dtype="float32")
    assert lm.instruct
    assert lm.encode_chat("w5") == [5, 9]
    assert lm.encode_chat("w5", system="w1") == [1, 5, 9]
    turns = [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6"}]
    assert lm.encode_chat(turns) == [5, 6, 9]
    assert len(turns) == 2


def test_a_conversation_that_the_template_refuses(directory):
    write_tokenizer(directory, chat_template="{{ raise_exception('roles must alternate') }}")
    lm = load(directory, dtype="float32")
    with refuses(str(directory), "roles must alternate"):
        lm.encode_chat("w5")


def test_the_default_model(smollm2_path):
    lm = load(default_model.NAME, dtype="bfloat16", cache_dir=smollm2_path.parent, progress=False)
    assert lm.name == default_model.NAME
    assert lm.instruct
    assert lm.decode(lm.encode_chat("Hi", system="Be brief."), skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert nnx.split(lm.model)[0] == nnx.split(lm.model)[0]


# What cannot be loaded.


def test_token_texts_add_up_to_the_text(smollm2):
    texts = smollm2.token_texts()
    assert len(texts) == smollm2.config.vocab_size
    text = "The ferry leaves at noon,\n  twice  a week: 3.50 each!"
    assert "".join(texts[token] for token in smollm2.encode(text)) == text
    assert all(texts[token] is None for token in smollm2.model.vocabulary.special_ids)
    # A character of several tokens: none of them is text by itself.
    assert None in [texts[token] for token in smollm2.encode("\N{SNOWMAN WITHOUT SNOW}")]


@pytest.mark.slow
def test_text_of_the_default_model_matches_a_regular_expression(smollm2):
    ids = smollm2.encode_chat("Is the sky blue? Why?")
    pattern = r"(Yes|No), because [a-z ]{10,40}\."
    automaton = specjax.sampling.Automaton.from_regex(pattern, smollm2.token_texts(), smollm2.model.eos_ids)
    out = specjax.generate(
        smollm2.model,
        np.array([ids]),
        [len(ids)],
        draft=specjax.drafts.Ngram(),
        config=specjax.DecodeConfig(max_new_tokens=48),
        processors=(automaton,),
    )
    assert out.finish_reasons[0] == specjax.FinishReason.EOS
    assert re.fullmatch(pattern, smollm2.decode(out.tokens[0, : out.lengths[0]]))


def test_nonsense_says_what_was_tried(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with refuses(
        "'random-nonsense'",
        "'smollm2-135m-instruct'",
        str(tmp_path / "random-nonsense"),
        "organisation/model",
    ):
        load("random-nonsense")


@pytest.mark.parametrize("name", ["/no/such/directory", "models/missing.gguf"])
def test_a_missing_path_is_not_taken_for_a_hub_id(name, monkeypatch):
    monkeypatch.setattr(hub, "download", lambda *_, **__: pytest.fail("asked the hub"))
    with refuses(f"no model {name!r}", "no file or directory"):
        load(name)


def test_a_file_of_another_format(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with refuses(str(path), "not a .gguf file", "directory"):
        load(path)


def test_a_dtype_is_checked_before_anything_is_read():
    with refuses("dtype='float16'"):
        load("random-nonsense", dtype="float16")


def test_a_directory_without_a_tokenizer(goldens):
    with refuses("tiny_qwen2", "no tokenizer"):
        load(goldens / "tiny_qwen2")


def test_a_tokenizer_with_more_tokens_than_the_model(directory):
    write_tokenizer(directory, size=129)
    with refuses(str(directory), "the tokenizer has 129 tokens, the model 128"):
        load(directory)


def test_a_tensor_of_another_shape(directory):
    path = directory / "model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": np.ones(40, np.float32)}, path)
    with refuses(str(directory), "model.norm.weight", "(40,)", "(48,)"):
        load(directory, dtype="float32")


def test_a_missing_tensor_is_named_with_the_directory_once(directory):
    path = directory / "model.safetensors"
    save_file({name: value for name, value in load_file(path).items() if name != "lm_head.weight"}, path)
    with refuses(str(directory), "lm_head.weight") as caught:
        load(directory, dtype="float32")
    assert str(caught.value).count(str(directory)) == 1


@pytest.mark.parametrize("package, module", [("gguf", "gguf"), ("safetensors", "checkpoint")])
def test_a_missing_package_names_the_extra(package, module, directory, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"specjax.models.{module}", raising=False)
    monkeypatch.delattr(specjax.models, module, raising=False)
    (tmp_path / "model.gguf").write_bytes(b"")
    with refuses(repr(package), "pip install 'specjax[models]'", error=ImportError):
        load(tmp_path / "model.gguf" if package == "gguf" else directory, dtype="float32")


def test_importing_the_library_imports_no_optional_package():
    optional = ["transformers", "tokenizers", "gguf", "safetensors", "huggingface_hub", "torch"]
    script = f"import sys, specjax; print([name for name in {optional} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# The hub, which is never reached from here.


def test_a_hub_id(directory, monkeypatch, tmp_path):
    calls = []

    def download(name, *, cache_dir):
        calls.append((name, cache_dir))
        return directory

    monkeypatch.setattr(hub, "download", download)
    assert load("some-org/tiny-model", dtype="float32", cache_dir=tmp_path).name == "some-org/tiny-model"
    assert calls == [("some-org/tiny-model", tmp_path)]


def test_a_local_directory_wins_over_a_hub_id(directory, monkeypatch):
    monkeypatch.setattr(hub, "download", lambda *_, **__: pytest.fail("asked the hub"))
    monkeypatch.chdir(directory.parent.parent)
    name = f"{directory.parent.name}/{directory.name}"
    assert hub.is_hub_id(name)
    assert load(name, dtype="float32").name == name


def test_a_mesh_whose_axes_split_nothing_is_refused():
    mesh = type("Mesh", (), {"shape": {"model": 1, "modle": 2}})
    with pytest.raises(ValueError, match="mesh has the axes modle; expected data, model or both"):
        load("no/such", mesh=mesh)
