"""Drafts by name, as in pair files and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specjax.drafts.fallback import Fallback
from specjax.drafts.layer_skip import LayerSkip
from specjax.drafts.model import Model
from specjax.drafts.ngram import Ngram
from specjax.drafts.none import NoDraft
from specjax.drafts.protocol import Draft
from specjax.drafts.recycling import Recycling

# Of a search that has another draft behind it: shorter matches are worth less than what that draft says.
_MATCH_BEFORE_FALLBACK = 3
_WITHOUT_WEIGHTS: dict[str, Draft] = {"ngram": Ngram(), "recycling": Recycling(), "none": NoDraft()}
_SEARCHES: dict[str, Draft] = {"ngram": Ngram(min_match=_MATCH_BEFORE_FALLBACK), "recycling": Recycling()}


def draft_named(name: str, load: Callable[[str], Any]) -> Draft:
    """The draft of a name: `ngram`, `recycling`, `none`, `early-exit:N`, `layers:0-9,28,29`, or a model.

    `ngram+OTHER` and `recycling+OTHER` are a `Fallback`, with n-grams of at least three tokens.

    Args:
        load: gives the module of a model's name.

    Raises:
        ValueError: the layers are none. Whatever `load` raises.
    """
    search, _, other = name.partition("+")
    if other and search in _SEARCHES:
        return Fallback(_SEARCHES[search], draft_named(other, load))
    if name in _WITHOUT_WEIGHTS:
        return _WITHOUT_WEIGHTS[name]
    kind, _, layers = name.partition(":")
    if kind == "early-exit":
        return LayerSkip.early_exit(_number(name, layers))
    if kind == "layers":
        return LayerSkip(tuple(index for part in layers.split(",") for index in _range(name, part)))
    return Model(load(name))


def check_name(name: str) -> None:
    """Raises ValueError for a name that `draft_named` would refuse; no model is loaded."""
    draft_named(name, lambda model: None)


def model_of(name: str) -> tuple[str, str]:
    """A draft's name in two parts, of which the second is a model's, and empty if it needs none."""
    search, _, other = name.partition("+")
    if other and search in _SEARCHES:
        before, model = model_of(other)
        return f"{search}+{before}", model
    skips = name.partition(":")[0] in ("early-exit", "layers")
    return (name, "") if skips or name in _WITHOUT_WEIGHTS else ("", name)


def is_reserved(name: str) -> bool:
    """Whether a name is that of a draft that needs no model of its own, whatever lies in the file system."""
    return not model_of(name)[1]


def looks_at_text_alone(name: str) -> bool:
    """Whether a draft is a search, whose proposals cost next to nothing and are often short."""
    return name in _SEARCHES


def _range(name: str, part: str) -> range:
    first, dash, last = part.partition("-")
    start = _number(name, first)
    return range(start, (_number(name, last) if dash else start) + 1)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"draft is {name!r}; expected early-exit:N or layers:0-9,28,29, with layer indices")
    return int(text)
