"""A peer's process and how it is talked to.

Each peer is a script that imports nothing of this package, so that it runs in an environment of its own. Both
sides write JSON objects, one a line. The script begins with

    {"ready": "what runs", "modes": {"plain": null, "lookup": 1}}

where a mode maps to the largest batch that it takes, null for any. It answers each request

    {"ids": [[...], ...], "new_tokens": 128, "mode": "lookup", "gamma": 5}

with

    {"seconds": 3.2, "first_token_seconds": 0.4, "tokens": [[...], ...]}

(seconds on its own clock; null where it does not know when the first token came), or {"error": "..."}. It
ends when its input does.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.bench.arms import Facts, Label, Outcome
from specjax.bench.workload import Batch

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
_WARM_UP_TOKENS = 8
# Threads of OpenMP runtimes wait in a busy loop for up to 0.2 s after their work, on cores that the next arm
# needs.
_SETTLE_SECONDS = 0.3
_FIND = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"


class PeerError(RuntimeError):
    """A peer cannot be used, or failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A library that can be measured.

    Attributes:
        script: what drives it, in the folder of scripts.
        modules: what it imports. packages: what to install for them.
        reads: which models it can load, in words.
        needs_gguf: it reads nothing but `.gguf` files.
    """

    script: str
    modules: tuple[str, ...]
    packages: str
    reads: str
    needs_gguf: bool = False


PEERS: Mapping[str, Kind] = {
    "transformers": Kind(
        script="transformers_peer.py",
        modules=("torch", "transformers", "gguf"),
        packages="torch transformers gguf accelerate",
        reads="a checkpoint directory or a .gguf file",
    ),
    "llama-cpp": Kind(
        script="llama_cpp_peer.py",
        modules=("llama_cpp",),
        packages="llama-cpp-python",
        reads="a .gguf file",
        needs_gguf=True,
    ),
    "openvino": Kind(
        script="openvino_peer.py",
        modules=("openvino", "openvino_genai"),
        packages="openvino openvino-genai",
        reads="a directory exported for OpenVINO or a .gguf file",
    ),
}


def check_packages(name: str, python: str) -> None:
    """Finds out before anything is loaded whether an interpreter has what a peer needs.

    Raises:
        PeerError: it has not, or cannot be run.
    """
    kind = PEERS[name]
    try:
        found = subprocess.run(
            [python, "-c", _FIND, *kind.modules], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"--peer {name}: cannot run {python}: {error}") from error
    if missing := found.stdout.split():
        raise PeerError(
            f"--peer {name} needs {', '.join(missing)}, which {python} does not have; install: "
            f"pip install {kind.packages}, or name an interpreter that has them with --peer-python"
        )


class Peer:
    """A running peer.

    Attributes:
        name: of `PEERS`.
        version: what runs, in its own words.
        modes: largest batch of each mode; None for any.

    Raises:
        PeerError: it does not start.
    """

    def __init__(
        self, name: str, python: str, model: pathlib.Path, *, dtype: str, threads: int, device: str
    ) -> None:
        kind = PEERS[name]
        if kind.needs_gguf and model.suffix != ".gguf":
            raise PeerError(f"--peer {name} reads {kind.reads}, not {model}; name one with --peer-model")
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, see close
        flags = {"--model": model, "--dtype": dtype, "--threads": threads, "--device": device}
        command = [python, SCRIPTS / kind.script, *(word for flag in flags.items() for word in flag)]
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends its peers itself
        )
        try:
            ready = self._read()
        except BaseException:
            self.close()
            raise
        self.version: str = ready["ready"]
        self.modes: dict[str, int | None] = ready["modes"]

    def generate(
        self, ids: Sequence[Sequence[int]], new_tokens: int, mode: str, gamma: int
    ) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            PeerError: the peer failed, or gave another number of tokens.
        """
        request = {"ids": [list(row) for row in ids], "new_tokens": new_tokens, "mode": mode, "gamma": gamma}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(self._message("has ended")) from error
        answer = self._read()
        counts = [len(row) for row in answer["tokens"]]
        if counts != [new_tokens] * len(ids):
            raise PeerError(f"--peer {self.name} gave {counts} tokens; expected {new_tokens} in each row")
        time.sleep(_SETTLE_SECONDS)
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise PeerError(self._message(f"ended with exit code {self._process.returncode}"))
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"--peer {self.name}: {answer['error']}")
        return answer

    def _message(self, what: str) -> str:
        self._errors.seek(0)
        last = "\n".join(self._errors.read().strip().splitlines()[-8:])
        return f"--peer {self.name} {what}; its last lines:\n{last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerArm:
    """One mode of a running peer."""

    label: Label
    peer: Peer
    mode: str

    def run(self, batch: Batch, new_tokens: int) -> Outcome:
        answer = self.peer.generate(batch.token_ids, new_tokens, self.mode, self.label.gamma)
        seconds, first = answer["seconds"], answer["first_token_seconds"]
        return Outcome(
            tokens=answer["tokens"],
            total_seconds=seconds,
            first_token_seconds=first,
            decode_seconds=None if first is None else seconds - first,
            decoded=new_tokens - 1,
        )

    def warm_up(self, batch: Batch) -> Facts:
        begun = time.perf_counter()
        self.run(batch, _WARM_UP_TOKENS)
        return Facts(warmup_seconds=time.perf_counter() - begun - _SETTLE_SECONDS)
