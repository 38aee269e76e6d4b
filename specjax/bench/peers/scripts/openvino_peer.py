"""OpenVINO GenAI: greedy decoding, and `prompt_lookup`."""

from __future__ import annotations

from collections.abc import Callable

import serve


def main() -> None:
    arguments = serve.arguments(__doc__)

    def load():
        import numpy as np
        import openvino
        import openvino_genai

        precision = {"float32": "f32", "bfloat16": "bf16"}[arguments.dtype]
        device = "GPU" if arguments.device == "cuda" else "CPU"

        def pipeline(**options: object) -> openvino_genai.LLMPipeline:
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False  # else a prompt that was seen before costs nothing
            return openvino_genai.LLMPipeline(
                arguments.model,
                device,
                scheduler_config=scheduler,
                INFERENCE_PRECISION_HINT=precision,
                INFERENCE_NUM_THREADS=arguments.threads,
                **options,
            )

        pipelines = {"plain": pipeline(), "lookup": pipeline(prompt_lookup=True)}

        def generate(
            ids: list[list[int]], new_tokens: int, mode: str, gamma: int, arrived: Callable[[], None]
        ) -> list[list[int]]:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = new_tokens
            config.ignore_eos = True
            config.do_sample = False
            if mode == "lookup":
                config.num_assistant_tokens = gamma
                config.max_ngram_size = 3
            prompt = np.array(ids, np.int64)
            inputs = openvino_genai.TokenizedInputs(
                openvino.Tensor(prompt), openvino.Tensor(np.ones_like(prompt))
            )

            class FirstToken(openvino_genai.StreamerBase):
                def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
                    arrived()
                    return openvino_genai.StreamingStatus.RUNNING

                def end(self) -> None:
                    pass

            return [list(row) for row in pipelines[mode].generate(inputs, config, FirstToken()).tokens]

        version = (
            f"openvino {openvino.get_version()}, openvino_genai {openvino_genai.__version__}, "
            f"{arguments.threads} threads, precision hint {precision}"
        )
        return version, {"plain": 1, "lookup": 1}, generate

    serve.serve(load)


if __name__ == "__main__":
    main()
