"""A language model of random weights that is made in no time, with a tokenizer of single bytes."""

from __future__ import annotations

import functools

import tokenizers
import transformers
from flax import nnx
from tokenizers import decoders, models, pre_tokenizers

from specjax.models import LanguageModel, ModelConfig, Transformer, Vocabulary

ASCII = 95  # printable characters
CHAT_TEMPLATE = (
    "{% for message in messages %}<turn>{{ message.role }}: {{ message.content }}</turn>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant: {% endif %}"
)


@functools.cache
def byte_tokenizer(count: int = 256, first: str = "<turn>", template: str | None = CHAT_TEMPLATE):
    """Ids 0 and 1 are special, the others single bytes, ASCII before all else."""
    vocabulary = {first: 0, "</turn>": 1}
    space_first = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda byte: (byte != "Ġ", byte))
    vocabulary |= {byte: 2 + i for i, byte in enumerate(space_first[:count])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([first, "</turn>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template, clean_up_tokenization_spaces=False
    )


@functools.cache
def tiny_lm(seed: int = 154, first: str = "<turn>", template: str | None = CHAT_TEMPLATE) -> LanguageModel:
    """A model of one layer that writes printable ASCII, with a context of 512 tokens and EOS id 1.

    Of most seeds it soon repeats one character for ever; of the default seed it answers "hello" with a text.
    """
    config = ModelConfig(
        vocab_size=2 + ASCII,
        hidden_size=16,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        context_length=512,
        eos_ids=(1,),
        tie_embeddings=True,
    )
    model = Transformer(config, rngs=nnx.Rngs(seed))
    tokenizer = byte_tokenizer(ASCII, first, template)
    model.vocabulary = Vocabulary.of(tokenizer)
    return LanguageModel(model=model, tokenizer=tokenizer, config=config, name=f"tiny-{seed}")
