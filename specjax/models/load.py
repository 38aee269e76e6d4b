"""`specjax.load`: a model, its tokenizer and its configuration, from a name or a path."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from specjax.models.config import ModelConfig
from specjax.models.dtype import resolve_dtype
from specjax.models.sharding import check_axes
from specjax.models.transformer import Transformer
from specjax.models.vocabulary import Vocabulary

# The readers of files, tokenizers and hubs are imported where they are used: they need optional packages, and
# transformers alone takes more than a second to import.
if TYPE_CHECKING:
    import transformers

Message = dict[str, str]


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A model with what turns text into its tokens and back.

    Attributes:
        model: the Flax module.
        tokenizer: a `transformers.PreTrainedTokenizerFast`.
        config: shapes and constants.
        name: what it was loaded by.
    """

    model: Transformer
    tokenizer: transformers.PreTrainedTokenizerFast
    config: ModelConfig
    name: str

    @property
    def instruct(self) -> bool:
        """Whether the model was made for conversation: its tokenizer has a chat template."""
        return bool(self.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as a base model continues it (with a BOS token if the tokenizer adds one)."""
        return list(self.tokenizer(text)["input_ids"])

    def encode_chat(self, messages: str | Sequence[Message], system: str | None = None) -> list[int]:
        """The ids of a conversation through the chat template, up to where the answer begins.

        Args:
            messages: what the user says, or a conversation as `{"role": ..., "content": ...}` objects.
            system: instructions that precede it.

        Raises:
            ValueError: if the model has no chat template, or the template refuses the conversation.
        """
        import jinja2

        if not self.instruct:
            raise ValueError(
                f"{self.name} has no chat template; use encode() for a model that continues text"
            )
        conversation = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        if system is not None:
            conversation.insert(0, {"role": "system", "content": system})
        try:
            text = self.tokenizer.apply_chat_template(
                conversation, add_generation_prompt=True, tokenize=False
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template of {self.name} refuses the conversation: {error}") from error
        # The template writes the BOS token itself, where the model wants one.
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Iterable[int] | jax.Array | np.ndarray, skip_special_tokens: bool = True) -> str:
        """The text of ids, a list or an array `[T]`."""
        return str(self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens))

    def token_texts(self) -> list[str | None]:
        """What each id adds to a text, for `specjax.sampling.Automaton.from_regex`.

        Returns:
            `vocab_size` strings; None for special and unused ids, and for parts of a character.
        """
        # Some tokenizers drop the space that leads a text, so each token is decoded behind another one.
        anchor = self.encode("a")[-1]
        ids = range(len(self.tokenizer))
        texts = self.tokenizer.batch_decode(
            [[anchor, token] for token in ids], clean_up_tokenization_spaces=False
        )
        start = len(self.decode([anchor]))
        special = Vocabulary.of(self.tokenizer).special_ids
        usable = [
            None if token in special or "\ufffd" in text else text[start:]
            for token, text in zip(ids, texts, strict=True)
        ]
        return usable + [None] * (self.config.vocab_size - len(usable))


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str | jax.typing.DTypeLike = "auto",
    mesh: Mesh | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> LanguageModel:
    """Loads a Llama-family model (Llama, SmolLM, Mistral, Qwen2) with its tokenizer.

    Args:
        name_or_path: a checkpoint directory in the Hugging Face layout; a `.gguf` file; a hub id such as
            `HuggingFaceTB/SmolLM2-135M-Instruct`; or `smollm2-135m-instruct`, which is downloaded once.
        dtype: `"float32"`, `"bfloat16"`, or `"auto"`: what is faster here (see `resolve_dtype`).
        mesh: devices to split the weights over, along its axis `model`; see `specjax.models.sharding`.
            Tensors go to them layer by layer, each device gets its part alone, and the host never holds the
            model.
        cache_dir: where downloads are kept (see `default_model.cache_directory` and `hub.download`).
        progress: show on stderr what is being downloaded.

    Raises:
        ValueError: if there is no such model, its files are damaged, its kind is not supported, or the mesh
            has an axis of several devices other than `data` and `model`.
        RuntimeError: if a download fails.
        ImportError: if an optional package is missing.
    """
    dtype = resolve_dtype(dtype)
    if mesh is not None:
        check_axes(axis for axis, size in mesh.shape.items() if size > 1)
    name = os.fspath(name_or_path)
    with _optional_packages():
        path = find(name, cache_dir, progress=progress)
        config, tensor, tokenizer = _open_directory(path) if path.is_dir() else _open_file(path)
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{path}: the tokenizer has {len(tokenizer)} tokens, the model {config.vocab_size}")
    model = _build(path, config, tensor, dtype, mesh)
    model.vocabulary = Vocabulary.of(tokenizer)
    return LanguageModel(model=model, tokenizer=tokenizer, config=config, name=name)


Tensors = Callable[[str], np.ndarray]
Opened = tuple[ModelConfig, Tensors, "transformers.PreTrainedTokenizerFast"]


def find(
    name: str, cache_dir: str | os.PathLike[str] | None = None, *, progress: bool = True
) -> pathlib.Path:
    """The local directory or file that a name stands for; a path that exists wins over a hub id."""
    from specjax.models import default_model, hub

    if name == default_model.NAME:
        return default_model.fetch(cache_dir, progress=progress)
    path = pathlib.Path(name).expanduser()
    if path.exists():
        return path
    if hub.is_hub_id(name) and path.suffix != ".gguf":
        return hub.download(name, cache_dir=cache_dir)
    raise ValueError(
        f"no model {name!r}: it is not the name of the default model ({default_model.NAME!r}), there is no "
        f"file or directory at {path.absolute()}, and it has not the form of a hub id ('organisation/model')"
    )


def _open_directory(path: pathlib.Path) -> Opened:
    from specjax.models import checkpoint, tokenizer

    opened = checkpoint.open_checkpoint(path)
    return opened.config, opened.tensor, tokenizer.from_directory(path)


def _open_file(path: pathlib.Path) -> Opened:
    from specjax.models import gguf, tokenizer

    if path.suffix != ".gguf":
        raise ValueError(
            f"{path}: not a .gguf file; a checkpoint in another format is loaded by its directory"
        )
    opened = gguf.open_gguf(path)
    return opened.config, opened.tensor, tokenizer.from_gguf(path, opened.metadata)


def _build(
    path: pathlib.Path, config: ModelConfig, tensor: Tensors, dtype: np.dtype, mesh: Mesh | None
) -> Transformer:
    try:
        return Transformer.from_weights(config, tensor, dtype, mesh)
    except ValueError as error:
        # A missing tensor is reported by the file's reader, a wrong shape by the model, which knows no path.
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def _optional_packages() -> Generator[None, None, None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"loading models needs the package {error.name!r}, which is not installed; "
            "install what specjax.load needs with: pip install 'specjax[models]'"
        ) from error
