"""Makes the models and logits under tests/goldens, with torch as the reference.

    python scripts/make_model_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf

Needs torch, transformers and gguf, and nothing of specjax: the reference has to come from somewhere else.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re

import gguf
import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import decoders, pre_tokenizers

GOLDENS = pathlib.Path(__file__).parents[1] / "tests" / "goldens"
GREEDY_TOKENS = 64
TOP = 8
PROBE_IDS = [0, 1, 2, 17, 28, 30, 198, 260, 339, 504, 1077, 4093, 9690, 20590, 33333, 49151]
PROMPTS = [
    "Name three rivers in Europe and the sea that each of them flows into.",
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "Repeat this sentence twice: the quick brown fox jumps over the lazy dog.",
    "Why does bread dough rise? Explain it to a child in two sentences.",
    "Übersetze ins Englische: «Der Zug fährt um 18:45 ab.» 🚆",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=pathlib.Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    path = parser.parse_args().gguf
    write_smollm2(gguf.GGUFReader(path), GOLDENS / "smollm2_135m_float32.json")
    write_tiny_llama3(GOLDENS / "tiny_llama3")
    write_tiny_qwen2(GOLDENS / "tiny_qwen2")


def write_smollm2(reader: gguf.GGUFReader, path: pathlib.Path) -> None:
    model, tokenizer = smollm2_model(reader), smollm2_tokenizer(reader)
    cases = [smollm2_case(model, tokenizer, prompt) for prompt in PROMPTS]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    source = f"{versions}, float32, dequantized from Q4_1; made by scripts/make_model_goldens.py"
    write_json(path, {"source": source, "probe_ids": PROBE_IDS, "cases": cases})


def smollm2_case(model, tokenizer, prompt: str) -> dict:
    """Prompt positions in detail; greedy tokens with the margin of each over its runner-up."""
    messages = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with torch.no_grad():
        output = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=GREEDY_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        logits = model(output).logits[0]
    top = torch.topk(logits, TOP)
    greedy = output[0, len(ids) :].tolist()
    margins = (top.values[:, 0] - top.values[:, 1])[len(ids) - 1 : -1]
    prompt_rows = slice(0, len(ids))
    return {
        "prompt": prompt,
        "input_ids": ids,
        "greedy_ids": greedy,
        "greedy_margins": rounded(margins),
        "top_ids": top.indices[prompt_rows].tolist(),
        "top_logits": rounded(top.values[prompt_rows]),
        "logsumexp": rounded(torch.logsumexp(logits[prompt_rows], dim=-1)),
        "probe_logits": rounded(logits[prompt_rows][:, PROBE_IDS]),
    }


def smollm2_model(reader: gguf.GGUFReader) -> transformers.LlamaForCausalLM:
    def number(key: str):
        return reader.fields[f"llama.{key}"].contents()

    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=number("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in heads:  # llama.cpp keeps the pairs of its rotary embedding side by side
            width = values.shape[0] // heads[kind]
            values = (
                values.reshape(heads[kind], width // 2, 2, -1).transpose(0, 2, 1, 3).reshape(values.shape)
            )
        weights[hugging_face_name(tensor.name)] = torch.from_numpy(values.copy())
    model = transformers.LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


def hugging_face_name(name: str) -> str:
    renamed = [
        (r"^token_embd", "model.embed_tokens"),
        (r"^output_norm", "model.norm"),
        (r"^blk\.(\d+)\.", r"model.layers.\1."),
        (r"attn_norm", "input_layernorm"),
        (r"ffn_norm", "post_attention_layernorm"),
        (r"attn_output", "self_attn.o_proj"),
        (r"attn_([qkv])\.", r"self_attn.\1_proj."),
        (r"ffn_(gate|up|down)", r"mlp.\1_proj"),
    ]
    for pattern, replacement in renamed:
        name = re.sub(pattern, replacement, name)
    return name


def smollm2_tokenizer(reader: gguf.GGUFReader) -> transformers.PreTrainedTokenizerFast:
    def field(key: str):
        return reader.fields[f"tokenizer.{key}"].contents()

    tokens = field("ggml.tokens")
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in field("ggml.merges")],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, field("ggml.token_type"), strict=True) if kind == 3]
    backend.add_special_tokens(control)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=field("chat_template")
    )


def write_tiny_llama3(directory: pathlib.Path) -> None:
    """Float32 in two shards; a head width of its own; Llama 3 scaling with frequencies in all three bands."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = transformers.LlamaConfig(**TINY, head_dim=16, rope_parameters=rope, tie_word_embeddings=True)
    write_tiny(transformers.LlamaForCausalLM, config, torch.float32, directory, shards=2)


def write_tiny_qwen2(directory: pathlib.Path) -> None:
    """Bfloat16 in one file; untied; biases of query, key and value (made large: they start at zero)."""
    config = transformers.Qwen2Config(**TINY, tie_word_embeddings=False)
    write_tiny(transformers.Qwen2ForCausalLM, config, torch.bfloat16, directory, shards=1)


TINY = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_tiny(kind: type, config, dtype: torch.dtype, directory: pathlib.Path, shards: int) -> None:
    """A random checkpoint and the logits that float32 arithmetic gives for its stored weights."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if name.endswith(("norm.weight", "bias")) else 2.0 / parameter.shape[-1] ** 0.5
            start = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_((start + spread * torch.randn_like(parameter)).to(dtype))
        ids = torch.randint(3, config.vocab_size, (2, 40))
        logits = model(ids).logits
    directory.mkdir(parents=True, exist_ok=True)
    config.architectures = [kind.__name__]
    write_json(directory / "config.json", json.loads(config.to_json_string(use_diff=True)), indent=2)
    weights = {name: value.to(dtype) for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    write_safetensors(directory, weights, shards)
    write_json(directory / "expected.json", {"input_ids": ids.tolist(), "logits": rounded(logits)})


def write_safetensors(directory: pathlib.Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    files = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        shard = {name: weights[name] for name in names[index::shards]}
        safetensors.torch.save_file(shard, directory / file, metadata={"format": "pt"})
        files |= dict.fromkeys(shard, file)
    size = sum(value.numel() * value.element_size() for value in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": {name: files[name] for name in names}}
    write_json(directory / "model.safetensors.index.json", index, indent=2)


def rounded(values: torch.Tensor) -> list:
    return np.round(values.double().numpy(), 5).tolist()


def write_json(path: pathlib.Path, value: object, indent: int | None = None) -> None:
    separators = (",", ": ") if indent else (",", ":")
    path.write_text(json.dumps(value, indent=indent, separators=separators) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
