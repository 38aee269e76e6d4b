"""The shape of a transformer that is small enough to compile and run in many variants."""

from specjax.models.config import ModelConfig

CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    tie_embeddings=True,
)
