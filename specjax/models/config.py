"""What a decoder-only transformer of the Llama family looks like, whatever file it came from."""

from __future__ import annotations

import dataclasses

ROPE_SCALING_KINDS = ("linear", "llama3", "divisors")


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

    def __post_init__(self) -> None:
        if self.kind not in ROPE_SCALING_KINDS:
            raise ValueError(
                f"rope scaling kind={self.kind!r}; expected one of {', '.join(ROPE_SCALING_KINDS)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shapes and constants of a Llama-family model (Llama, SmolLM, Qwen2, ...).

    Hashable, because it is static in every compiled program.

    Raises:
        ValueError: if a size is not positive, the query heads do not divide evenly among the key/value heads,
            or `head_dim` is odd (rotary embedding turns pairs).

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

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "context_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            kv_heads = self.num_kv_heads
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_kv_heads={kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even")
