import pytest

from specjax.text.streaming import Detokenizer, StopFilter, TextStream
from tests.text.tiny import byte_tokenizer

TEXT = "naïve 東京 👩‍🚀 end"


def ids_of(text):
    return byte_tokenizer()(text, add_special_tokens=False)["input_ids"]


def decode(ids):
    return byte_tokenizer().decode(list(ids), skip_special_tokens=True)


def drop_leading_space(ids):
    """Like a decoder of the SentencePiece kind: id 0 is " a", others " b"; the first space is no text."""
    return "".join(" a" if token == 0 else " b" for token in ids)[1:]


def test_pieces_are_whole_characters_and_make_the_text():
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(token) for token in ids_of(TEXT)]
    assert detokenizer.finish() == ""
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == list(TEXT)  # as early as can be


def test_a_text_that_ends_within_a_character_shows_so_only_at_the_end():
    detokenizer = Detokenizer(decode)
    ids = ids_of("a東")[:-1]
    assert "".join(detokenizer.push(token) for token in ids) == "a"
    assert detokenizer.finish() == decode(ids)[1:]
    assert detokenizer.finish() == ""


def test_bytes_that_never_become_a_character_do_not_hold_up_the_text():
    detokenizer = Detokenizer(decode)
    ids = [*ids_of("東")[:1], *ids_of("xyz")]
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) == decode(ids) == "\ufffdxyz"


def test_special_tokens_are_no_text():
    detokenizer = Detokenizer(decode)
    ids = [0, *ids_of("é"), 1, *ids_of("a"), 1]
    assert "".join(detokenizer.push(token) for token in ids) + detokenizer.finish() == "éa"


def test_a_space_between_words_survives_and_the_first_does_not():
    detokenizer = Detokenizer(drop_leading_space)
    assert [detokenizer.push(token) for token in (0, 1, 0)] == ["a", " b", " a"]


@pytest.mark.parametrize(
    "text, stops, shown, found",
    [
        ("one two three", ["two"], "one ", "two"),
        ("one two three", ["three", "two"], "one ", "two"),
        ("one two three", ["four"], "one two three", None),
        ("abcd", ["bcd", "c"], "ab", "c"),  # complete first
        ("abcd", ["c", "bc"], "a", "bc"),  # complete together: the longest
        ("aab", ["ab"], "a", "ab"),
        ("aaab aaa", ["aaab"], "", "aaab"),
        ("ends in th", ["the"], "ends in th", None),
        ("a\n\nb", ["\n\n"], "a", "\n\n"),
        ("", ["x"], "", None),
        ("abc", [], "abc", None),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_stop_texts_whatever_the_pieces(text, stops, shown, found, size):
    stop_filter = StopFilter(stops)
    pieces = [stop_filter.push(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(pieces) + stop_filter.finish() == shown
    assert stop_filter.found == found


def test_what_may_be_a_stop_text_is_held_back_and_nothing_else():
    stop_filter = StopFilter(["END.", "stop"])
    assert stop_filter.push("the E") == "the "
    assert stop_filter.push("N") == ""
    assert stop_filter.push("T") == "ENT"
    assert stop_filter.push(" sto") == " "
    assert stop_filter.push("ne") == "stone"


def test_an_empty_stop_text_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopFilter(["a", ""])


def test_a_stream_ends_at_a_stop_text_within_tokens():
    stream = TextStream(decode, ["京 "])
    shown = []
    for token in ids_of(TEXT):
        shown.append(stream.push(token))
        if stream.stopped:
            break
    assert "".join(shown) + stream.finish() == "naïve 東"


def test_the_end_of_a_stream_shows_what_was_held_back():
    stream = TextStream(decode, ["end of all"])
    shown = "".join(stream.push(token) for token in ids_of(TEXT))
    assert shown == TEXT.removesuffix("end")
    assert stream.finish() == "end"
    assert not stream.stopped
