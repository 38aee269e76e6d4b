"""Peers in processes of their own: the protocol, its failures, and the scripts against stand-ins."""

import os
import sys
import textwrap

import numpy as np
import pytest

from specjax.bench.arms import Label
from specjax.bench.peers import PEERS, PeerArm, PeerError, check_packages, protocol
from specjax.bench.workload import Batch
from tests.bench.peers import install_echo, running

BATCH = Batch(
    task="a",
    index=0,
    names=("x", "y"),
    prompts=np.array([[1, 2, 3, 0], [4, 5, 0, 0]], np.int32),
    lengths=np.array([3, 2], np.int32),
)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(protocol, "_SETTLE_SECONDS", 0.0)


@pytest.fixture
def echo(tmp_path, monkeypatch):
    install_echo(tmp_path, monkeypatch)
    return tmp_path / "model.gguf"


def test_a_peer_answers_and_keeps_answering(echo):
    with running(echo) as peer:
        assert peer.version == "echo 1.0, float32"
        assert peer.modes == {"plain": None, "lookup": 1}
        arm = PeerArm(label=Label(name="echo", kind="peer", batch=2), peer=peer, mode="plain")
        for new_tokens in (4, 3):
            outcome = arm.run(BATCH, new_tokens)
            assert outcome.tokens == [[3, 4, 5, 6][:new_tokens], [5, 6, 0, 1][:new_tokens]]
            assert 0 <= outcome.first_token_seconds <= outcome.total_seconds < 5
            assert outcome.decode_seconds == outcome.total_seconds - outcome.first_token_seconds
            assert outcome.decoded == new_tokens - 1
        assert arm.warm_up(BATCH).warmup_seconds > 0


def test_a_failing_request_is_an_error_with_the_peers_own_words(echo):
    with running(echo) as peer:
        with pytest.raises(PeerError, match="ValueError: cannot do that"):
            peer.generate([[1]], 4, "fail", 0)
        with pytest.raises(PeerError, match=r"gave \[3\] tokens; expected 4"):
            peer.generate([[1]], 4, "short", 0)
        assert peer.generate([[1]], 2, "plain", 0)["tokens"] == [[1, 2]]
        with pytest.raises(PeerError, match=r"ended with exit code 1(.|\n)*killed"):
            peer.generate([[1]], 4, "die", 0)
        with pytest.raises(PeerError, match="ended"):
            peer.generate([[1]], 4, "plain", 0)


def test_a_peer_that_does_not_start_says_why(tmp_path, monkeypatch):
    install_echo(tmp_path, monkeypatch, source="raise ImportError('libecho.so is missing')")
    with pytest.raises(PeerError, match=r"ended with exit code 1(.|\n)*libecho.so is missing"), running("m"):
        pass


def test_closing_ends_the_process(echo):
    with running(echo) as peer:
        process = peer._process
    assert process.returncode == 0


def test_a_peer_that_reads_gguf_alone_refuses_a_directory(tmp_path, monkeypatch):
    install_echo(tmp_path, monkeypatch, needs_gguf=True)
    with pytest.raises(PeerError, match=r"reads a \.gguf file, not .*--peer-model"), running(tmp_path):
        pass


def test_missing_packages_are_named_with_what_to_install(tmp_path, monkeypatch):
    install_echo(tmp_path, monkeypatch, modules=("json", "no_such_module"))
    with pytest.raises(PeerError, match=r"needs no_such_module,.*pip install echo-package") as refused:
        check_packages("echo", sys.executable)
    assert "json" not in str(refused.value)
    with pytest.raises(PeerError, match="cannot run /no/such/python"):
        check_packages("echo", "/no/such/python")
    monkeypatch.setitem(PEERS, "echo", protocol.Kind(script="", modules=("json",), packages="", reads=""))
    check_packages("echo", sys.executable)


# Stand-ins with the calls that the scripts make, which fail on any other.
LLAMA_CPP = """
    __version__ = "0.0"

    class Llama:
        def __init__(self, *, model_path, n_ctx, n_threads, n_threads_batch, n_gpu_layers, draft_model,
                     logits_all, verbose):
            assert n_ctx >= 3 + 4 and n_threads == n_threads_batch == 1 and n_gpu_layers == 0
            assert logits_all == (draft_model is not None)
            self.draft = draft_model
            self.seen = []

        def reset(self):
            self.seen = []

        def generate(self, tokens, *, temp, repeat_penalty):
            assert temp == 0.0 and repeat_penalty == 1.0
            assert not self.seen, "a prompt that was seen before costs nothing"
            self.seen = list(tokens)
            while True:
                yield (tokens[-1] + (self.draft.num_pred_tokens if self.draft else 0)) % 100
"""
SPECULATIVE = """
    class LlamaPromptLookupDecoding:
        def __init__(self, *, num_pred_tokens):
            self.num_pred_tokens = num_pred_tokens
"""
OPENVINO = """
    def get_version():
        return "0.0"

    class Tensor:
        def __init__(self, array):
            self.array = array
"""
OPENVINO_GENAI = """
    import enum, types

    __version__ = "0.0"
    StreamingStatus = enum.Enum("StreamingStatus", ["RUNNING"])
    StreamerBase = type("StreamerBase", (), {})

    class SchedulerConfig:
        enable_prefix_caching = True

    class GenerationConfig:
        __slots__ = ("max_new_tokens", "ignore_eos", "do_sample", "num_assistant_tokens", "max_ngram_size")

    class TokenizedInputs:
        def __init__(self, input_ids, attention_mask):
            self.ids = input_ids.array
            assert attention_mask.array.all()

    class LLMPipeline:
        def __init__(self, model, device, *, scheduler_config, INFERENCE_PRECISION_HINT,
                     INFERENCE_NUM_THREADS, prompt_lookup=False):
            assert device == "CPU" and not scheduler_config.enable_prefix_caching
            assert INFERENCE_PRECISION_HINT == "f32" and INFERENCE_NUM_THREADS == 1
            self.lookup = prompt_lookup

        def generate(self, inputs, config, streamer):
            assert config.ignore_eos and not config.do_sample
            gamma = config.num_assistant_tokens if self.lookup else 0
            assert hasattr(config, "num_assistant_tokens") == self.lookup
            tokens = [int(inputs.ids[0, -1]) + gamma] * config.max_new_tokens
            for token in tokens:
                assert streamer.write(token) is StreamingStatus.RUNNING
            return types.SimpleNamespace(tokens=[tokens])
"""


@pytest.mark.parametrize(
    "name, files",
    [
        ("llama-cpp", {"llama_cpp/__init__": LLAMA_CPP, "llama_cpp/llama_speculative": SPECULATIVE}),
        ("openvino", {"openvino": OPENVINO, "openvino_genai": OPENVINO_GENAI}),
    ],
)
def test_the_scripts_of_libraries_that_are_not_here(tmp_path, monkeypatch, name, files):
    for path, source in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / f"{path}.py").write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    check_packages(name, sys.executable)
    with running(tmp_path / "model.gguf", name) as peer:
        assert "1 threads" in peer.version
        assert peer.modes == {"plain": 1, "lookup": 1}
        for _ in range(2):
            plain = peer.generate([[5, 6, 7]], 4, "plain", 0)
            lookup = peer.generate([[5, 6, 7]], 4, "lookup", 3)
            assert plain["tokens"] == [[7] * 4]
            assert lookup["tokens"] == [[10] * 4]
            assert plain["first_token_seconds"] is not None
        with pytest.raises(PeerError, match=r"ValueError|IndexError"):
            peer.generate([], 4, "plain", 0)
