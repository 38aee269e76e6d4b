"""Hugging Face transformers: greedy search, and prompt lookup (`prompt_lookup_num_tokens`)."""

from __future__ import annotations

import os
from collections.abc import Callable

import serve


def main() -> None:
    arguments = serve.arguments(__doc__)

    def load():
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        transformers.utils.logging.disable_progress_bar()
        if os.path.isdir(arguments.model):
            source, options = arguments.model, {}
        else:
            source, name = os.path.split(os.path.abspath(arguments.model))
            options = {"gguf_file": name}
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, arguments.dtype), **options
        )
        model = model.eval().to(arguments.device)
        # Nothing ends a text, and nothing but the likeliest token is taken: what a checkpoint says about
        # sampling must not count.
        model.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)

        class FirstToken:
            """A streamer: called with the prompt first, then with tokens."""

            def __init__(self, arrived: Callable[[], None]) -> None:
                self.arrived = arrived
                self.calls = 0

            def put(self, value: torch.Tensor) -> None:
                self.calls += 1
                if self.calls == 2:
                    self.arrived()

            def end(self) -> None:
                pass

        def generate(
            ids: list[list[int]], new_tokens: int, mode: str, gamma: int, arrived: Callable[[], None]
        ) -> list[list[int]]:
            width = max(map(len, ids))
            padded = torch.tensor([[0] * (width - len(row)) + row for row in ids])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
            options = {"prompt_lookup_num_tokens": gamma} if mode == "lookup" else {}
            if len(ids) == 1:  # a streamer takes one row
                options["streamer"] = FirstToken(arrived)
            with torch.inference_mode():
                out = model.generate(
                    padded.to(arguments.device),
                    attention_mask=mask.to(arguments.device),
                    do_sample=False,
                    max_new_tokens=new_tokens,
                    **options,
                )
            return out[:, width:].tolist()

        version = (
            f"transformers {transformers.__version__}, torch {torch.__version__}, "
            f"{torch.get_num_threads()} threads, {arguments.dtype}, {arguments.device}"
        )
        return version, {"plain": None, "lookup": 1}, generate

    serve.serve(load)


if __name__ == "__main__":
    main()
