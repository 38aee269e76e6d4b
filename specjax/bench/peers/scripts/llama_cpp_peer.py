"""llama.cpp through llama-cpp-python: greedy sampling, and `LlamaPromptLookupDecoding`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import serve

_CONTEXT_STEP = 256


def main() -> None:
    arguments = serve.arguments(__doc__)

    def load():
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        models: dict[tuple[int, int], llama_cpp.Llama] = {}

        def model(gamma: int, needed: int) -> llama_cpp.Llama:
            """The model with room for `needed` tokens; with gamma 0 without a draft."""
            room = -(-needed // _CONTEXT_STEP) * _CONTEXT_STEP
            if (gamma, room) not in models:
                models[gamma, room] = llama_cpp.Llama(
                    model_path=arguments.model,
                    n_ctx=room,
                    n_threads=arguments.threads,
                    n_threads_batch=arguments.threads,
                    n_gpu_layers=-1 if arguments.device == "cuda" else 0,
                    draft_model=LlamaPromptLookupDecoding(num_pred_tokens=gamma) if gamma else None,
                    logits_all=bool(gamma),
                    verbose=False,
                )
            return models[gamma, room]

        def generate(
            ids: list[list[int]], new_tokens: int, mode: str, gamma: int, arrived: Callable[[], None]
        ) -> list[list[int]]:
            [prompt] = ids
            gamma = gamma if mode == "lookup" else 0
            llama = model(gamma, len(prompt) + new_tokens + gamma + 1)
            llama.reset()  # else a prompt that was seen before costs nothing
            tokens = []
            stream = llama.generate(prompt, temp=0.0, repeat_penalty=1.0)
            for token in itertools.islice(stream, new_tokens):
                arrived()
                tokens.append(int(token))
            return [tokens]

        version = f"llama-cpp-python {llama_cpp.__version__}, {arguments.threads} threads, {arguments.model}"
        return version, {"plain": 1, "lookup": 1}, generate

    serve.serve(load)


if __name__ == "__main__":
    main()
