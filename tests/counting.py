"""A model that counts: tests decide which token plays which part."""

import numpy as np

from specjax.testing import TableLM


def counting_table(vocab_size, *, margin=8.0, noise=0.5, seed=0):
    """Logits of a `TableLM` whose greedy text counts upwards from the prompt's last token."""
    table = np.random.default_rng(seed).normal(size=(vocab_size,) * 3) * noise
    last = np.arange(vocab_size)
    table[:, last, (last + 1) % vocab_size] += margin
    return table.astype(np.float32)


def counting_model(vocab_size, **kwargs):
    return TableLM(counting_table(vocab_size, **kwargs))
