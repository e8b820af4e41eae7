"""The checkpoint's ``config.json`` as vLLM and transformers read it."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers import PretrainedConfig

from polymath.model.config import MODEL_TYPE, ModelConfig

_FIELDS = [field.name for field in dataclasses.fields(ModelConfig) if field.name != "path"]


class PolymathHybridConfig(PretrainedConfig):
    """Every field of ``polymath.model.config.ModelConfig``, by the same name.

    ``head_dim`` and ``num_key_value_heads`` are what vLLM sizes cache pages with. One token's entry
    of a sparse layer is its latent and its index key; vLLM counts a key and a value of ``head_dim``
    each, so ``head_dim`` is half an entry.
    """

    model_type = MODEL_TYPE

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if "kv_lora_rank" in fields:
            self.num_key_value_heads = 1
            self.head_dim = (fields["kv_lora_rank"] + fields["index_head_dim"]) // 2

    def model_config(self) -> ModelConfig:
        """The typed configuration."""
        return ModelConfig(**{name: getattr(self, name) for name in _FIELDS})
