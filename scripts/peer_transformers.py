"""Greedy decoding by Hugging Face transformers, driven line by line by `bench_decode.py`.

Runs in an environment of its own (torch, transformers, gguf). Reads one JSON object a line with `ids` and
`new_tokens`; answers each with `seconds` and `tokens`. `--dtype` is torch's name.
"""

import argparse
import json
import os
import sys
import time

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    folder, name = os.path.split(os.path.abspath(arguments.gguf))
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=getattr(torch, arguments.dtype)
    ).eval()
    version = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(json.dumps({"ready": version}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids = torch.tensor([request["ids"]])
        begun = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=request["new_tokens"],
                max_new_tokens=request["new_tokens"],
                pad_token_id=0,
            )
        seconds = time.perf_counter() - begun
        print(json.dumps({"seconds": seconds, "tokens": out[0, ids.shape[1] :].tolist()}), flush=True)


if __name__ == "__main__":
    main()
