"""Arguments that make no sense: refused before anything compiles; where traced, the end of that row alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import FinishReason, Sampling, Stop
from specjax.drafts import Model, NoDraft
from specjax.models.vocabulary import Vocabulary
from specjax.testing.table_lm import TableLM

VOCAB, WIDTH, NEW, CAPACITY = 6, 4, 5, 8


class Untraceable(TableLM):
    """Nobody may score a token with it, not even to compile a program."""

    def __call__(self, *args, **kwargs):
        raise AssertionError("the model was traced")


def start(target, prompts, prompt_lengths, *, draft=None, config=None, **kwargs):
    return specjax.Decoder(target, draft, config).start(prompts, prompt_lengths, **kwargs)


def arguments(**changes):
    """Two good rows, whose padding is no token id, and some changes."""
    prompts = np.array([[1, 2, 3, -7], [4, 99, 99, 99]])
    config = specjax.DecodeConfig(
        max_new_tokens=NEW, capacity=CAPACITY, max_eos=2, max_stop=1, max_stop_len=2, max_bias=2
    )
    return {"prompts": prompts, "prompt_lengths": np.array([3, 1]), "config": config} | changes


CALLS = pytest.mark.parametrize("call", (specjax.generate, specjax.decode, start))


@CALLS
def test_good_arguments_reach_the_model(call):
    """So the tests below end where they say, not earlier."""
    with pytest.raises(AssertionError, match="the model was traced"):
        call(Untraceable.random(VOCAB, seed=0), **arguments())


@CALLS
@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"prompts": np.zeros((0, 4), int), "prompt_lengths": []}, r"prompts has shape \(0, 4\)"),
        ({"prompts": np.zeros((2, 0), int)}, r"prompts has shape \(2, 0\); expected at least one"),
        ({"prompts": [], "prompt_lengths": []}, r"prompts has shape \(0,\); expected 2 dim"),
        ({"prompts": [1, 2, 3]}, r"prompts has shape \(3,\); expected 2 dim"),
        ({"prompts": np.zeros((2, 4, 1), int)}, r"prompts has shape \(2, 4, 1\); expected 2 dim"),
        ({"prompt_lengths": 3}, r"prompt_lengths has shape \(\); expected 1 dim"),
        ({"prompt_lengths": [3, 1, 1]}, r"prompt_lengths has shape \(3,\); expected \(2,\)"),
        ({"prompt_lengths": [3, 0]}, "prompt_lengths is 0 in row 1; expected 1 to 4"),
        ({"prompt_lengths": [5, 1]}, "prompt_lengths is 5 in row 0; expected 1 to 4"),
        ({"prompts": [[1, 2, 6, 0], [1, 0, 0, 0]]}, "prompts is 6 in row 0; expected ids from 0 to 5"),
        ({"prompts": [[1, 2, 3, 0], [-1, 0, 0, 0]]}, "prompts is -1 in row 1; expected ids from 0 to 5"),
        (
            {"prompts": [[0, 0, 0, 0]] * 2, "prompt_lengths": [4, 1]},
            r"prompt length \+ max_new_tokens is 9 in row 0; expected at most the capacity of 8",
        ),
    ),
)
def test_prompts_that_make_no_sense(call, changes, message):
    with pytest.raises(ValueError, match=message):
        call(Untraceable.random(VOCAB, seed=0), **arguments(**changes))


@CALLS
@pytest.mark.parametrize("changes", ({"prompts": np.ones((2, 4))}, {"prompt_lengths": [3.0, 1.0]}))
def test_fractions_for_tokens_or_lengths(call, changes):
    (name,) = changes
    with pytest.raises(TypeError, match=f"{name} has dtype float64; expected integers"):
        call(Untraceable.random(VOCAB, seed=0), **arguments(**changes))


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"temperature": -0.5}, "temperature is -0.5 in row 0; expected 0 or a positive"),
        ({"temperature": [1.0, np.nan]}, "temperature is nan in row 1; expected 0 or a positive"),
        ({"temperature": np.inf}, "temperature is inf"),
        ({"top_p": 0.0}, r"top_p is 0.0 in row 0; expected a number in \(0, 1\]"),
        ({"top_p": [1.0, 1.5]}, "top_p is 1.5 in row 1"),
        ({"min_p": -0.25}, r"min_p is -0.25 in row 0; expected a number in \[0, 1\]"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"top_k": [5, -1]}, r"top_k is -1 in row 1; expected 0 \(off\)"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0 in row 0; expected a positive"),
        ({"presence_penalty": np.nan}, "presence_penalty is nan"),
        ({"frequency_penalty": np.inf}, "frequency_penalty is inf"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        (
            {"logit_bias": {6: 1.0}},
            "banned_tokens or banned_sequences is 6 in row 0; expected ids from 0 to 5",
        ),
        ({"banned_tokens": [-1]}, "banned_tokens is -1 in row 0"),
        ({"logit_bias": {-1: 5.0}}, "logit_bias is -1 in row 0"),
        ({"banned_tokens": [[], [-2]]}, "banned_tokens is -2 in row 1"),
        ({"logit_bias": {0: np.inf}}, "logit_bias or sequence_bias is inf in row 0; expected finite"),
        ({"banned_tokens": [0, 1, 2]}, r"holds 3 for one row; expected at most 2 \(DecodeConfig.max_bias\)"),
        ({"temperature": [1.0, 1.0, 1.0]}, r"temperature has shape \(3,\).*2 rows"),
        ({"seed": [1, 2, 3]}, r"seed has shape \(3,\).*2 rows"),
    ),
)
def test_sampling_that_makes_no_sense(settings, message):
    target = Untraceable.random(VOCAB, seed=0)
    with pytest.raises(ValueError, match=message):
        specjax.generate(target, **arguments(sampling=Sampling(**settings)))
    if "seed" not in settings:  # a draft's is not used
        with pytest.raises(ValueError, match=message):
            specjax.generate(target, **arguments(draft_sampling=Sampling(**settings)))


@pytest.mark.parametrize(
    ("stop", "message"),
    (
        (
            {"max_new_tokens": 6},
            r"max_new_tokens is 6 in row 0; expected 0 to DecodeConfig.max_new_tokens, 5",
        ),
        ({"max_new_tokens": [5, -1]}, "stop.max_new_tokens is -1 in row 1"),
        ({"max_new_tokens": [1, 2, 3]}, r"max_new_tokens has shape \(3,\).*2 rows"),
        ({"eos_ids": [1, 6]}, "stop.eos_ids is 6 in row 0; expected ids from 0 to 5"),
        ({"sequences": [[0, -1]]}, "sequences is -1 in row 0"),
        ({"eos_ids": [[1], [-2]]}, "stop.eos_ids is -2 in row 1"),
        ({"eos_ids": [1, 2, 3]}, r"eos_ids has 3 ids.*at most 2 \(DecodeConfig.max_eos\)"),
        ({"eos_ids": np.array([1, 2, 3])}, r"eos_ids has 3 ids.*at most 2 \(DecodeConfig.max_eos\)"),
        ({"eos_ids": [[1], [2], [3]]}, "eos_ids has 3 rows.*2 rows"),
        ({"sequences": [[1, 6]]}, "stop.sequences is 6 in row 0"),
        ({"sequences": [[1], [2]]}, r"sequences holds 2 for one row.*at most 1 \(DecodeConfig.max_stop\)"),
        ({"sequences": [[1, 2, 3]]}, r"one of 3 tokens; expected 1 to 2 \(DecodeConfig.max_stop_len\)"),
        ({"sequences": [[[1]], [[2]], [[3]]]}, "sequences has 3 rows.*2 rows"),
    ),
)
def test_stops_that_make_no_sense(stop, message):
    with pytest.raises(ValueError, match=message):
        specjax.generate(Untraceable.random(VOCAB, seed=0), **arguments(stop=Stop(**stop)))


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"gamma": -1}, "DecodeConfig.gamma is -1; expected an integer of at least 0"),
        ({"gamma": 2.0}, "DecodeConfig.gamma is 2.0; expected an integer"),
        ({"max_new_tokens": 0}, "DecodeConfig.max_new_tokens is 0; expected an integer of at least 1"),
        ({"capacity": 20.5}, "DecodeConfig.capacity is 20.5; expected an integer"),
        ({"capacity": 0}, "DecodeConfig.capacity is 0; expected an integer of at least 1"),
        ({"prefill_chunk": 0}, "DecodeConfig.prefill_chunk is 0"),
        ({"verify_widths": 2}, "DecodeConfig.verify_widths is 2; expected a tuple of integers"),
        ({"verify_widths": (3, 2)}, r"verify_widths is \(3, 2\); expected ascending numbers from 1 to gamma"),
        ({"verify_widths": (5,)}, r"verify_widths is \(5,\); expected ascending numbers from 1 to gamma, 4"),
        ({"verify_widths": (0, 2)}, r"verify_widths is \(0, 2\); expected ascending"),
        ({"rule": "best"}, "DecodeConfig.rule is 'best'; expected one of 'auto', 'token'"),
    ),
)
def test_configurations_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        specjax.DecodeConfig(**settings)


def test_drafts_that_make_no_sense():
    with pytest.raises(ValueError, match=r"NoDraft.width is -1; expected at least 0"):
        NoDraft(width=-1)
    with pytest.raises(ValueError, match=r"Ngram\(max_match=2, min_match=3\); expected 1 <= min_match"):
        specjax.drafts.Ngram(max_match=2, min_match=3)


@CALLS
def test_a_draft_without_a_model_is_refused(call):
    with pytest.raises(TypeError, match=r"Model\.module is None; expected a Flax module"):
        call(TableLM.random(VOCAB, seed=0), draft=Model(None), **arguments())


@CALLS
def test_a_text_longer_than_the_targets_context_is_refused(call):
    target = Untraceable.random(VOCAB, seed=0)
    target.context_length = 7
    message = r"prompt length \+ max_new_tokens is 8 in row 0; expected at most the target's context of 7"
    with pytest.raises(ValueError, match=message):
        call(target, **arguments())


@CALLS
def test_a_draft_with_another_vocabulary_is_refused(call):
    target, draft = Untraceable.random(VOCAB, seed=0), TableLM.random(VOCAB, seed=1)
    target.vocabulary, draft.vocabulary = Vocabulary(tuple("abcdef")), Vocabulary(tuple("abXdef"))
    with pytest.raises(ValueError, match="id 2 is 'c' in the target and 'X' in the draft"):
        call(target, draft=Model(draft), **arguments())


@pytest.mark.parametrize("padded_width", (VOCAB - 2, VOCAB + 2))
def test_a_draft_with_another_padded_width_is_accepted(padded_width):
    """As are a draft and a target of which one does not know its vocabulary."""
    for strings in (tuple("abcd"), None):
        target, draft = Untraceable.random(VOCAB, seed=0), TableLM.random(padded_width, seed=1)
        target.vocabulary, draft.vocabulary = Vocabulary(tuple("abcd")), strings and Vocabulary(strings)
        with pytest.raises(AssertionError, match="the model was traced"):
            specjax.generate(target, draft=Model(draft), **arguments())


# Inside the caller's own jit nobody can look at values. Row 1 is the bad one, between a greedy and a sampled
# row.

TARGET = TableLM.random(VOCAB, seed=0)
TRACED_CONFIG = specjax.DecodeConfig(
    max_new_tokens=NEW, capacity=CAPACITY, gamma=2, logprobs=True, max_bias=2, debug=True
)
GOOD = {
    "prompts": [[1, 2, 3, 0], [4, 5, 0, 0], [5, 1, 0, 0]],
    "lengths": [3, 2, 2],
    "max_new_tokens": [5, 4, 5],
    "temperature": [0.0, 0.8, 1.0],
    "top_k": [0, 4, 3],
    "top_p": [1.0, 0.9, 0.8],
    "min_p": [0.0, 0.1, 0.05],
    "repetition_penalty": [1.2, 1.0, 1.3],
    "presence_penalty": [0.1, 0.2, 0.3],
    "frequency_penalty": [0.3, 0.2, 0.1],
    "min_new_tokens": [0, 1, 2],
    "bias": [0.5, 1.0, 1.5],
    "banned": [2, 3, 4],
    "seed": [5, 6, 7],
}
BAD = {
    "prompts": ([VOCAB, 0, 0, 0], [4, -1, 0, 0], [4, 2**31 - 1, 0, 0]),
    "lengths": (0, -1, WIDTH + 1, 2**31 - 1, -(2**31)),
    # Row 1 has room for 6 more; the last ones overflow a sum.
    "max_new_tokens": (-1, NEW + 1, 2**31 - 1, -(2**31)),
    "temperature": (-1.0, np.nan, np.inf),
    "top_k": (-1,),
    "top_p": (0.0, 1.5, np.nan),
    "min_p": (-0.1, 1.5, np.nan),
    "repetition_penalty": (0.0, -1.0, np.nan, np.inf),
    "presence_penalty": (np.nan, np.inf),
    "frequency_penalty": (np.nan, -np.inf),
    "min_new_tokens": (-1,),
    "bias": (np.nan, np.inf),
    "banned": (VOCAB, -2),
}


def call_inside_jit(function):
    draft = Model(TableLM.random(VOCAB, seed=1))

    @jax.jit
    def run(settings):
        settings = dict(settings)
        prompts, lengths = settings.pop("prompts"), settings.pop("lengths")
        stop = Stop(eos_ids=[0], sequences=[], max_new_tokens=settings.pop("max_new_tokens"))
        bias, banned = settings.pop("bias"), settings.pop("banned")
        sampling = Sampling(
            **settings,
            logit_bias=[{1: bias[row]} for row in range(3)],
            banned_tokens=[[banned[row]] for row in range(3)],
        )
        return function(
            TARGET, prompts, lengths, draft=draft, config=TRACED_CONFIG, sampling=sampling, stop=stop
        )

    def with_row_1(**changes):
        settings = {name: np.array(values) for name, values in GOOD.items()}
        for name, value in changes.items():
            settings[name][1] = value
        return run(jax.tree.map(jnp.asarray, settings))

    return with_row_1


@pytest.fixture(scope="module", params=(specjax.generate, specjax.decode), ids=lambda f: f.__name__)
def inside_jit(request):
    return call_inside_jit(request.param)


@pytest.fixture(scope="module")
def untouched(inside_jit):
    return inside_jit()


def of_rows(out, rows):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], out)


def test_good_values_are_good_inside_jit_too(untouched):
    assert set(np.asarray(untouched.finish_reasons)) <= {FinishReason.EOS, FinishReason.LENGTH}
    assert np.all(untouched.lengths > 0)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_a_bad_traced_value_ends_its_row_and_no_other(inside_jit, untouched, name, value):
    out = inside_jit(**{name: value})
    bad = of_rows(out, 1)
    assert (bad.finish_reasons, bad.lengths, bad.stats.emitted) == (FinishReason.ERROR, 0, 0)
    np.testing.assert_array_equal(bad.tokens, TRACED_CONFIG.pad_id)
    np.testing.assert_array_equal(bad.logprobs, 0)
    rest = [0, 2]
    jax.tree.map(np.testing.assert_array_equal, of_rows(out, rest), of_rows(untouched, rest))


def test_text_and_budget_that_do_not_fit_together_end_a_traced_row(inside_jit, untouched):
    """Each of the two is fine alone: a prompt of four tokens, a budget of five, room for eight."""
    prompt = [4, 5, 1, 1]
    assert inside_jit(prompts=prompt, lengths=4, max_new_tokens=4).finish_reasons[1] != FinishReason.ERROR
    out = inside_jit(prompts=prompt, lengths=4, max_new_tokens=5)
    assert (out.finish_reasons[1], out.lengths[1]) == (FinishReason.ERROR, 0)
    rest = [0, 2]
    jax.tree.map(np.testing.assert_array_equal, of_rows(out, rest), of_rows(untouched, rest))


def test_sampling_and_stop_may_be_arguments_of_the_callers_jit():
    """Both are pytrees; every number in them is then traced, those in lists of ids too."""
    config = specjax.DecodeConfig(max_new_tokens=NEW)
    prompts, lengths = np.array([[1, 2], [3, 0], [4, 4]]), np.array([2, 1, 2])
    sampling = Sampling(temperature=1.0, top_k=3, logit_bias={2: 1.0}, banned_tokens=[[4], [], [1]], seed=3)
    stop = Stop(eos_ids=[[5], [], [2, 5]], sequences=[[[3, 3]], [], [[1], [2, 2]]], max_new_tokens=[5, 4, 5])

    @jax.jit
    def run(sampling, stop):
        return specjax.decode(TARGET, prompts, lengths, config=config, sampling=sampling, stop=stop)

    expected = specjax.generate(TARGET, prompts, lengths, config=config, sampling=sampling, stop=stop)
    jax.tree.map(np.testing.assert_array_equal, run(sampling, stop), expected)


def test_text_longer_than_the_targets_context_ends_a_traced_row():
    target = TableLM.random(VOCAB, seed=0)
    target.context_length = 7
    config = specjax.DecodeConfig(max_new_tokens=NEW)

    @jax.jit
    def run(prompts, lengths):
        return specjax.decode(target, prompts, lengths, config=config)

    out = run(np.ones((2, 4), np.int32), np.array([2, 3]))
    np.testing.assert_array_equal(out.finish_reasons, [FinishReason.LENGTH, FinishReason.ERROR])
    np.testing.assert_array_equal(out.lengths, [NEW, 0])
