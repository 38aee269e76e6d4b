"""Checkpoints from the Hugging Face hub."""

from __future__ import annotations

import os
import pathlib
import re

import huggingface_hub
from huggingface_hub import errors

# Everything that a checkpoint directory needs, and nothing that is pickled (.bin, .pt).
ALLOWED_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `organisation/model`."""
    return _HUB_ID.fullmatch(name) is not None


def download(name: str, *, cache_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The local directory of a hub model, downloaded as far as the hub's cache does not hold it.

    Environment variables of the hub's client apply: `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_HOME`, and
    `HF_HUB_DISABLE_PROGRESS_BARS`.

    Args:
        name: `organisation/model`.
        cache_dir: replaces the hub's cache directory.

    Raises:
        RuntimeError: if the model does not exist, needs permission, or cannot be reached.
    """
    cache = None if cache_dir is None else pathlib.Path(cache_dir)
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=list(ALLOWED_FILES), cache_dir=cache)
        )
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise RuntimeError(
            f"could not get {name!r} from the Hugging Face hub: {error}\n"
            "Without network access, copy the model's directory here (config.json, *.safetensors, tokenizer "
            "files) and pass its path to specjax.load."
        ) from error
