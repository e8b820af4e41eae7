"""The hybrid policy: layers of KDA or sparse latent attention, each followed by experts.

    h = h + mixer(RMSNorm(h));  h = h + feed_forward(RMSNorm(h))

This is the model that trains; inference with caches subclasses its layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymath.kernels.moe import expert_load
from polymath.model.config import LINEAR, ModelConfig
from polymath.model.layers import (
    MLP,
    KimiDeltaAttention,
    Layout,
    MoE,
    RMSNorm,
    SparseLatentAttention,
)


class IndexerStage(StrEnum):
    """``DENSE``: attention sees everything while indexers learn from it. ``SPARSE``: top-k."""

    DENSE = "dense"
    SPARSE = "sparse"


@dataclass(frozen=True)
class Total:
    """A sum and what to divide it by. Both add up over micro-batches and ranks."""

    sum: Tensor
    count: Tensor

    def __add__(self, other: Total) -> Total:
        return Total(self.sum + other.sum, self.count + other.count)


@dataclass(frozen=True)
class HybridOutput:
    """``hidden`` is [B, T, d], ready for ``logits``.

    ``aux`` leaves padding out and holds
    ``indexer_kl``, only with gradients on: a differentiable sum, over tokens times sparse layers;
    ``expert_load``: tokens per expert [layers with experts, E], over tokens.
    """

    hidden: Tensor
    aux: dict[str, Total]


class HybridLayer(nn.Module):
    """A mixer over tokens and a feed-forward part, both pre-normalised and residual."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        linear = config.layer_types[index] == LINEAR
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn: KimiDeltaAttention | SparseLatentAttention = (
            KimiDeltaAttention(config) if linear else SparseLatentAttention(config)
        )
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp: MLP | MoE = (
            MLP(config.hidden_size, config.intermediate_size)
            if index < config.first_k_dense_replace
            else MoE(config)
        )

    def forward(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """[B, T, d] to [B, T, d], the indexer's loss [B, T] and the load [E] if there are any."""
        kl = load = None
        x = self.input_layernorm(h)
        if isinstance(self.self_attn, SparseLatentAttention):
            x, kl = self.self_attn(x, layout)
        else:
            x = self.self_attn(x, layout)
        h = h + x
        x = self.post_attention_layernorm(h)
        if isinstance(self.mlp, MoE):
            x, routing = self.mlp(x)
            valid = None if layout.valid is None else layout.valid.flatten()
            load = expert_load(routing.experts, self.mlp.experts.down_proj.shape[0], valid)
        else:
            x = self.mlp(x)
        return h + x, kl, load

    def init_weights(self, residual_std: float) -> None:
        """Fresh weights; ``residual_std`` is that of maps into the residual stream."""
        self.self_attn.init_weights(residual_std)
        self.mlp.init_weights(residual_std)
        for norm in (self.input_layernorm, self.post_attention_layernorm):
            nn.init.ones_(norm.weight)


class HybridModel(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding_multiplier = config.embedding_multiplier
        self.chunk_size = config.chunk_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            HybridLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> HybridOutput:
        """See ``HybridForCausalLM.forward``."""
        layout = Layout.of(input_ids, document_ids, self.chunk_size)
        h = self.embed_tokens(input_ids) * self.embedding_multiplier
        losses: list[Tensor] = []
        loads: list[Tensor] = []
        for layer in self.layers:
            h, kl, load = layer(h, layout)
            losses += [] if kl is None else [kl]
            loads += [] if load is None else [load]
        return HybridOutput(self.norm(h), _totals(losses, loads, layout, h))


class HybridForCausalLM(nn.Module):
    """The policy. Built without weights; call ``init_weights`` or load a state dict."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = HybridModel(config)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )

    def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> HybridOutput:
        """Run packed lanes.

        Args:
            input_ids: [B, T] int64.
            document_ids: [B, T], positive and equal within a document, 0 for padding. Documents see
                only themselves and start at multiples of ``config.chunk_size``. None: each lane is
                one document.
        """
        return self.model(input_ids, document_ids)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., d] to logits [..., vocabulary]. Cheapest on the places that count."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight)

    def set_indexer_stage(self, stage: IndexerStage) -> None:
        """Choose what sparse layers attend to from now on."""
        for layer in self.model.layers:
            if isinstance(layer.self_attn, SparseLatentAttention):
                layer.self_attn.dense_stage = stage is IndexerStage.DENSE

    def update_router_bias(self, load: Tensor, rate: float) -> None:
        """Move the routers' choice bias by ``rate`` against ``load`` [layers with experts, E].

        ``load`` is the global sum of ``aux["expert_load"]``. Routers stay as they are otherwise.
        """
        routers = [layer.mlp.gate for layer in self.model.layers if isinstance(layer.mlp, MoE)]
        for router, row in zip(routers, load, strict=True):
            router.update_bias(row, rate)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Fresh weights from torch's global generator; activations start at unit size."""
        config = self.config
        # Maps into the residual stream share one unit of variance: three of them in each layer.
        residual_std = (3 * config.num_hidden_layers * config.hidden_size) ** -0.5
        self.model.embed_tokens.weight.normal_(std=config.hidden_size**-0.5)
        for layer in self.model.layers:
            assert isinstance(layer, HybridLayer)
            layer.init_weights(residual_std)
        nn.init.ones_(self.model.norm.weight)
        if self.lm_head is not None:
            self.lm_head.weight.normal_(std=config.hidden_size**-0.5)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _totals(
    losses: list[Tensor], loads: list[Tensor], layout: Layout, h: Tensor
) -> dict[str, Total]:
    if layout.valid is None:
        tokens = torch.tensor(float(h.shape[0] * h.shape[1]), device=h.device)
    else:
        tokens = layout.valid.sum().float()
    aux: dict[str, Total] = {}
    if losses:
        kl = torch.stack(losses).sum(0)
        if layout.valid is not None:
            kl = kl * layout.valid
        aux["indexer_kl"] = Total(kl.sum(), tokens * len(losses))
    if loads:
        aux["expert_load"] = Total(torch.stack(loads), tokens)
    return aux
