"""Text from tokens as they come: whole characters only, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not a whole character


class Detokenizer:
    """Turns token ids into text, one at a time.

    A token may end within a character, and what it stands for may depend on the token before it (a leading
    space that a decoder drops at the beginning of a text). So the text of new tokens is the difference of two
    decodings that begin with the same tokens, and it waits until its last character is whole. Both decodings
    are short, whatever the length of the text.

    Args:
        decode: the text of a list of ids, such as `LanguageModel.decode`.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._returned: list[int] = []  # the latest tokens whose text has been returned
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        """The text that is certain now that `token` follows; empty within a character."""
        self._waiting.append(token)
        text = self._text_of_waiting()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._returned, self._waiting = self._waiting, []
        return text

    def finish(self) -> str:
        """The rest, with a replacement character for a character that never became whole."""
        text = self._text_of_waiting()
        self._waiting = []
        return text

    def _text_of_waiting(self) -> str:
        known = self._decode(self._returned)
        return self._decode(self._returned + self._waiting)[len(known) :]


class StopFilter:
    """Lets text through up to the first stop text, and holds back what may be the beginning of one.

    The stop text that is complete first wins, of those that are complete with the same character the longest;
    so the result does not depend on how the text was cut into pieces.

    Attributes:
        found: the stop text that ended the text, None as long as none has.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("a stop text is empty; expected at least one character")
        self.found: str | None = None
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """The text that may be shown now that `text` follows."""
        if self.found is not None:
            return ""
        text = self._held + text
        starts = {stop: text.find(stop) for stop in self._stops}
        complete = [(start + len(stop), start, stop) for stop, start in starts.items() if start >= 0]
        if complete:
            _, shown, self.found = min(complete)
        else:
            shown = len(text) - self._length_of_beginning(text)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What was held back, if no stop text came of it."""
        return "" if self.found is not None else self._held

    def _length_of_beginning(self, text: str) -> int:
        """How many of the last characters are the beginning of a stop text."""
        longest = max(map(len, self._stops), default=1) - 1
        endings = range(min(longest, len(text)), 0, -1)
        return next((n for n in endings if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


class TextStream:
    """The text of a generation, token by token: a `Detokenizer` and a `StopFilter`."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._filter = StopFilter(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop text has ended the text."""
        return self._filter.found is not None

    def push(self, token: int) -> str:
        """The text that may be shown now that `token` follows."""
        return self._filter.push(self._detokenizer.push(token))

    def finish(self) -> str:
        """The text that is left at the end of the tokens."""
        return self._filter.push(self._detokenizer.finish()) + self._filter.finish()
