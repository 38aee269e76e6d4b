import dataclasses
import itertools

import numpy as np
import pytest

from specjax.decoding import DecodeConfig, Decoder, Stop
from specjax.drafts import Ngram
from specjax.sampling import Sampling
from specjax.text.generation import Runner, padded_width
from tests.text.tiny import tiny_lm

PROMPT = tiny_lm().encode("to be or not to be, that is")
NO_EOS = Stop(eos_ids=[])


@pytest.fixture(scope="module")
def runner():
    lm = tiny_lm()
    config = DecodeConfig(max_new_tokens=24, gamma=3, logprobs=True)
    return Runner(decoder=Decoder(lm.model, Ngram(), config), decode=lm.decode, prompt_width=64, stop=NO_EOS)


def reference(runner):
    """What `Decoder.generate` returns for the prompt."""
    prompts = np.zeros((1, 64), np.int32)
    prompts[0, : len(PROMPT)] = PROMPT
    return runner.decoder.generate(prompts, [len(PROMPT)], sampling=runner.sampling, stop=runner.stop)


def with_texts(runner, text_of_token, *stop_texts):
    """The runner with a tokenizer that writes `text_of_token(id)` for a token."""
    decode = lambda ids: "".join(text_of_token(token) for token in ids)  # noqa: E731
    return dataclasses.replace(runner, decode=decode, stop_texts=stop_texts)


def test_a_generation_holds_what_the_decoder_returns(runner):
    pieces = []
    generation = runner.generate(PROMPT, pieces.append)
    out = reference(runner)
    assert generation.token_ids == np.asarray(out.tokens[0]).tolist()
    assert generation.text == "".join(pieces) == runner.decode(generation.token_ids)
    assert generation.finish_reason == "length"
    assert generation.prompt_tokens == len(PROMPT)
    assert (generation.emitted, generation.rounds) == (24, int(out.stats.rounds[0]))
    assert generation.accepted_at == np.asarray(out.stats.accepted_at[0]).tolist()
    np.testing.assert_array_equal(generation.logprobs, out.logprobs[0])
    assert generation.prefill_seconds < generation.first_token_seconds
    assert not generation.failed
    assert not generation.cancelled


def test_measuring_yields_the_same_tokens(runner):
    tokens, seconds = runner.measure(PROMPT)
    assert tokens == runner.generate(PROMPT).token_ids
    assert seconds > 0


def test_an_eos_ends_a_generation(runner):
    tokens = runner.generate(PROMPT).token_ids
    ended = dataclasses.replace(runner, stop=Stop(eos_ids=[tokens[5]])).generate(PROMPT)
    assert ended.token_ids == tokens[: tokens.index(tokens[5]) + 1]
    assert ended.finish_reason == "eos"


def test_a_stop_text_ends_a_generation_that_the_device_would_go_on_with(runner):
    letters = itertools.cycle("abcdefgh")
    names = dict.fromkeys(runner.generate(PROMPT).token_ids)
    names = {token: f"<{letter}{token}>" for token, letter in zip(names, letters, strict=False)}
    tokens = runner.generate(PROMPT).token_ids
    wanted = names[tokens[4]][2:]  # begins within a token
    stopped = with_texts(runner, names.get, wanted).generate(PROMPT)
    count = tokens.index(tokens[4]) + 1
    assert stopped.token_ids == tokens[:count]
    assert stopped.text == "".join(names[token] for token in tokens[:count]).removesuffix(wanted)
    assert stopped.finish_reason == "stop"
    assert len(stopped.logprobs) == count


def test_ctrl_c_returns_what_was_committed(runner):
    shown = []

    def interrupt(text):
        shown.append(text)
        if len(shown) == 3:
            raise KeyboardInterrupt

    generation = with_texts(runner, lambda token: "x").generate(PROMPT, interrupt)
    assert generation.cancelled
    assert generation.finish_reason == "cancelled"
    assert generation.text == "".join(shown) == "xxx"
    assert len(generation.token_ids) == 3
    assert generation.rounds > 0


def test_ctrl_c_during_prefill_leaves_an_empty_generation(runner, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.decoder, "start", interrupt)
    generation = runner.generate(PROMPT)
    assert generation.cancelled
    assert (generation.text, generation.token_ids, generation.rounds) == ("", [], 0)
    assert generation.first_token_seconds is None


def test_a_warm_up_keeps_the_settings(runner):
    sampled = dataclasses.replace(runner, sampling=Sampling(temperature=1.0, seed=3))
    assert sampled.warm_up() > 0
    assert sampled.generate(PROMPT).token_ids == np.asarray(reference(sampled).tokens[0]).tolist()


@pytest.mark.parametrize("lengths, width", [([1], 64), ([64, 3], 64), ([65], 128), ([500, 20], 512)])
def test_prompts_share_a_width(lengths, width):
    assert padded_width(lengths) == width
