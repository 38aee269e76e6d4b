"""The loop that all peers share: a JSON request a line, a JSON answer a line. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable

# ids, new_tokens, mode, gamma and a clock that is to be called when the first token is there -> tokens
Generate = Callable[[list[list[int]], int, str, int, Callable[[], None]], list[list[int]]]


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args()


def serve(
    load: Callable[[], tuple[str, dict[str, int | None], Generate]], lines: Iterable[str] = sys.stdin
) -> None:
    """Loads what `load` returns (a version, the largest batch of each mode, a function), then answers.

    Whatever libraries print goes to standard error, so that standard output holds answers alone.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, object]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    version, modes, generate = load()
    answer({"ready": version, "modes": modes})
    for line in lines:
        request = json.loads(line)
        first: list[float] = []
        begun = time.perf_counter()

        def token_arrived(first: list[float] = first, begun: float = begun) -> None:
            if not first:
                first.append(time.perf_counter() - begun)

        try:
            tokens = generate(
                request["ids"], request["new_tokens"], request["mode"], request["gamma"], token_arrived
            )
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            continue
        seconds = time.perf_counter() - begun
        answer({"seconds": seconds, "first_token_seconds": first[0] if first else None, "tokens": tokens})
