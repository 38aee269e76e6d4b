"""Flax models that score in transactions, and how they are loaded."""

from specjax.models.config import ModelConfig, RopeScaling
from specjax.models.load import LanguageModel, load
from specjax.models.transformer import Transformer
from specjax.models.vocabulary import Vocabulary

__all__ = ["LanguageModel", "ModelConfig", "RopeScaling", "Transformer", "Vocabulary", "load"]
