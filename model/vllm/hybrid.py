"""The hybrid policy as a vLLM model: the trainer's modules, with cached cores in their mixers.

Parameters are the trainer's by name, shape and layout, so the digest of the live weights is
comparable with the trainer's, and an update is a copy in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid

from polymath.model.checkpoint import load_into
from polymath.model.config import LINEAR, ModelConfig
from polymath.model.hybrid import HybridForCausalLM
from polymath.model.layers import Layout
from polymath.model.vllm.kda import CachedKda, state_dtypes, state_shapes
from polymath.model.vllm.sparse_attention import CachedSparseAttention

# Cached cores read what they need from vLLM's step; padding and packing do not occur.
_NO_LAYOUT = Layout(None, None, cast(Tensor, None), None)


def model_config(vllm_config: VllmConfig) -> ModelConfig:
    """Our typed configuration behind vLLM's."""
    return vllm_config.model_config.hf_config.model_config()  # type: ignore[no-any-return]


class PolymathHybridForCausalLM(HybridForCausalLM, HasInnerState, IsHybrid):
    """See the module. Tokens of a step lie end to end, [N]."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = model_config(vllm_config)
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            cached = CachedKda if config.layer_types[index] == LINEAR else CachedSparseAttention
            layer.self_attn = cached(config, vllm_config, f"model.layers.{index}.self_attn")
        self.requires_grad_(False)

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> Any:
        """For vLLM's page sizes."""
        return state_shapes(model_config(vllm_config))

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> Any:
        """For vLLM's page sizes."""
        return state_dtypes(vllm_config)

    @classmethod
    def get_mamba_state_copy_func(cls) -> Any:
        """At a block boundary both states are copied whole."""
        return (get_temporal_copy_spec, get_temporal_copy_spec)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Token ids [N] to the residual stream [N, d]."""
        h: Tensor = self.model.embed_tokens(input_ids) * self.model.embedding_multiplier
        return h

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """One step: [N] token ids to hidden states [N, d]. Positions are not used (NoPE)."""
        h = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        for layer in self.model.layers:
            h, _kl, _load = layer(h, _NO_LAYOUT)
        return self.model.norm(h)  # type: ignore[no-any-return]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Hidden states [N, d] to logits [N, vocabulary]."""
        return self.logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint's tensors; all must be there, and no other. Returns their names."""
        tensors = dict(weights)
        load_into(self, tensors, "checkpoint")
        return set(tensors)
