"""What the token ids of a model mean, so that a draft and a target can be checked against each other."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import transformers


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """The string of every token id, and which ids are special.

    Two are equal when all strings and special ids are. Comparison and hash go by a digest computed once,
    because a vocabulary is a static attribute of a model and is compared whenever a program is looked up.

    Attributes:
        strings: token strings by id, as the tokenizer stores them (byte-level pieces, not text); None where
            the tokenizer has no token.
        special_ids: ids of tokens that stand for no text, such as the end of a turn.
    """

    strings: tuple[str | None, ...]
    special_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: transformers.PreTrainedTokenizerBase) -> Vocabulary:
        """The vocabulary of a transformers tokenizer."""
        ids = tokenizer.get_vocab()
        strings: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
        for string, index in ids.items():
            strings[index] = string
        added = tokenizer.added_tokens_decoder
        return cls(tuple(strings), frozenset(index for index, token in added.items() if token.special))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the contents, in hexadecimal."""
        content = json.dumps([self.strings, sorted(self.special_ids)])
        return hashlib.sha256(content.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __len__(self) -> int:
        return len(self.strings)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens, {len(self.special_ids)} special, {self.digest[:12]})"

    def describe(self, index: int) -> str:
        """A token in words, for messages: its string, and whether it is special."""
        string = self.strings[index]
        if string is None:
            return "no token"
        return f"{string!r} (special)" if index in self.special_ids else repr(string)

    def first_difference(self, other: Vocabulary) -> tuple[int, str, str] | None:
        """The lowest id that means something else in `other`, with both meanings as `describe` gives them.

        Only ids that both have are compared: models of one family are padded to different widths.
        """
        for index in range(min(len(self), len(other))):
            mine, theirs = self.describe(index), other.describe(index)
            if mine != theirs:
                return index, mine, theirs
        return None


def check_compatible(target: Any, draft: Any) -> None:
    """Checks that a draft model's ids mean what the target's mean, as far as both vocabularies are known.

    Args:
        target, draft: models; a missing or None `vocabulary` attribute means unknown, which passes.

    Raises:
        ValueError: naming the first id that differs, and both strings.
    """
    mine, theirs = getattr(target, "vocabulary", None), getattr(draft, "vocabulary", None)
    if mine is None or theirs is None or mine == theirs:
        return
    difference = mine.first_difference(theirs)
    if difference is not None:
        index, in_target, in_draft = difference
        raise ValueError(
            f"target and draft have different vocabularies: id {index} is {in_target} in the target and "
            f"{in_draft} in the draft; use a draft with the target's tokenizer"
        )
