"""Tokenizers, from a Hugging Face directory or from the metadata of a GGUF file, without torch.

Both give a `transformers.PreTrainedTokenizerFast`. transformers itself reads GGUF tokenizers only where torch
is installed, so the byte-level BPE is put together here from what the file says.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

if TYPE_CHECKING:
    import transformers

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}

# The split of Llama 3; Qwen2's differs in taking digits one by one instead of up to three.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_directory(directory: str | pathlib.Path) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint directory, with its chat template if it has one.

    Raises:
        ValueError: if the directory has no tokenizer files, or they cannot be read.
    """
    directory = pathlib.Path(directory)
    if not any((directory / name).exists() for name in _TOKENIZER_FILES):
        raise ValueError(f"{directory}: no tokenizer; looked for {', '.join(_TOKENIZER_FILES)}")
    with _without_torch_advice():
        import transformers
    # tokenizer.json says everything; AutoTokenizer would rebuild parts of it from the class it guesses.
    whole = (directory / "tokenizer.json").exists()
    reader: Any = transformers.PreTrainedTokenizerFast if whole else transformers.AutoTokenizer
    try:
        return reader.from_pretrained(str(directory), clean_up_tokenization_spaces=False)
    except Exception as error:  # the tokenizers package raises plain Exception for a damaged file
        raise ValueError(f"{directory}: cannot read the tokenizer: {error}") from error


def from_gguf(path: pathlib.Path, metadata: Mapping[str, Any]) -> transformers.PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer that the metadata of a GGUF file describes.

    Args:
        path: the file, for messages.
        metadata: its key-value pairs.

    Raises:
        ValueError: if the tokenizer is of another kind, or a part of it is missing or makes no sense.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(
            f"{path}: tokenizer.ggml.model={kind!r} is not supported; supported: gpt2 (byte-level BPE). "
            "For other tokenizers load the model from its Hugging Face directory"
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(
            f"{path}: tokenizer.ggml.pre={pre!r} is not supported; supported: {', '.join(_PRE_TOKENIZERS)}"
        )
    tokens = _require(path, metadata, "tokens")
    backend = _byte_level_bpe(path, tokens, _require(path, metadata, "merges"), pre)
    _add_special_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type") or [])
    roles = _role_tokens(path, tokens, metadata)
    # Where the file does not say, llama.cpp adds it for Llama 3 only.
    if metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") and "bos_token" in roles:
        bos = roles["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    with _without_torch_advice():
        import transformers
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **roles,
    )


def _require(path: pathlib.Path, metadata: Mapping[str, Any], name: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{path}: tokenizer.ggml.{name} is missing, or not a list of strings")
    return value


def _byte_level_bpe(
    path: pathlib.Path, tokens: list[str], merges: list[str], pre: str
) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        repeated = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise ValueError(f"{path}: tokenizer.ggml.tokens holds {repeated!r} twice")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        # Llama 3 has words in its vocabulary that no sequence of merges builds.
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the tokenizers package raises plain Exception
        raise ValueError(f"{path}: tokenizer.ggml.merges do not fit the tokens: {error}") from error
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _add_special_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Makes control and user-defined tokens match whole, before the text is split; they keep their ids."""
    added = [
        tokenizers.AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(added)


def _role_tokens(path: pathlib.Path, tokens: list[str], metadata: Mapping[str, Any]) -> dict[str, str]:
    roles = {}
    for role, name in _ROLES.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ValueError(f"{path}: tokenizer.ggml.{name}_token_id={index}; expected below {len(tokens)}")
        roles[f"{role}_token"] = tokens[index]
    return roles


def _split_words(digits: str) -> pre_tokenizers.PreTokenizer:
    words = tokenizers.Regex(_WORDS.format(digits=digits))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(words, behavior="isolated"), byte_level])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


# Values of tokenizer.ggml.pre, and the way each cuts a text into the pieces that BPE works on.
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split_words(digits="{1,3}"),
    "qwen2": lambda: _split_words(digits=""),
}


@contextlib.contextmanager
def _without_torch_advice() -> Generator[None, None, None]:
    """Importing transformers where torch is missing advises to install it, which nothing here needs."""
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
