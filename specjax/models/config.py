"""What a decoder-only transformer of the Llama family looks like, whatever file it came from."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the model was first trained on.

    Attributes:
        kind: `"linear"` divides every frequency by `factor`; `"llama3"` divides the low ones, keeps the
            high ones and interpolates between (Llama 3.1, as in its `config.json`); `"divisors"` divides
            each frequency by its own number, which is how GGUF files store the same rule.
        factor: how far the context is stretched (unused by `"divisors"`).
        low_freq_factor, high_freq_factor, original_context_length: the borders of the llama3 rule.
        divisors: one number for each of the head_dim / 2 frequencies (only used by `"divisors"`).
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192
    divisors: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shapes and constants of a Llama-family model (Llama, SmolLM, Qwen2, ...).

    Hashable, because it is static in every compiled program.

    Attributes:
        tie_embeddings: the output head is the embedding matrix.
        qkv_bias: query, key and value projections have a bias (Qwen2).
        context_length: the longest sequence, in tokens, that the model was made for.
        eos_ids: ids that end a generation when the caller names no others.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    context_length: int = 2048
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
