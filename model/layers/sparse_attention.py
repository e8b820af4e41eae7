"""Gated sparse attention over a compressed latent, without positions (NoPE).

    c_q = RMSNorm(W_qa x)          q = W_qb c_q                   queries
    c   = RMSNorm(W_kva x)         k, v = W_kvb c                 cached per token: c alone
    index query = W_qI c_q, index key = LayerNorm(W_kI x), index weights = W_w x * J^-1/2 * Di^-1/2
    y = W_o [sigmoid(W_g x) * o]                                  o over the selected tokens

Absorbed, q^T k = (W_UK^T q)^T c and o = W_UV (sum of p c): decoding needs only c and the index key.
Source: DeepSeek-V2 (arXiv 2405.04434) for the latent, DeepSeek-V3.2 (arXiv 2512.02556) for the
indexer, Kimi K3 (arXiv 2607.24653) for gate and NoPE.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polymath.kernels.sparse_attention import attention, index_scores, indexer_kl, select
from polymath.model.config import ModelConfig
from polymath.model.layers.layout import Layout
from polymath.model.layers.linear import init_linear, joint, linear
from polymath.model.layers.norm import RMSNorm

INDEX_NORM_EPS = 1e-6


@dataclass(frozen=True)
class SparseInputs:
    """What the core of a sparse layer takes. ``latent`` and ``index_key`` are what a cache holds.

    Attributes:
        query: [..., H, Dqk].
        latent: [..., R], normalised.
        gate: [..., H Dv], output gate before its sigmoid.
        index_query: [..., J, Di].
        index_key: [..., Di].
        index_weights: [..., J], scale factors included.
    """

    query: Tensor
    latent: Tensor
    gate: Tensor
    index_query: Tensor
    index_key: Tensor
    index_weights: Tensor


class Indexer(nn.Module):
    """Scores tokens for selection. Its inputs are detached: it learns from its own loss only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.head_dim = config.index_n_heads, config.index_head_dim
        self.wq_b = linear(config.q_lora_rank, self.n_heads * self.head_dim)
        self.wk = linear(config.hidden_size, self.head_dim)
        self.k_norm = nn.LayerNorm(self.head_dim, INDEX_NORM_EPS)
        self.weights_proj = linear(config.hidden_size, self.n_heads)

    def forward(self, x: Tensor, q_latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Index query [..., J, Di], key [..., Di] and weights [..., J]."""
        x, q_latent = x.detach(), q_latent.detach()
        query = self.wq_b(q_latent).unflatten(-1, (self.n_heads, self.head_dim))
        key, weights = joint(x, [self.wk, self.weights_proj])
        return query, self.k_norm(key), weights * (self.n_heads * self.head_dim) ** -0.5

    @torch.no_grad()
    def init_weights(self) -> None:
        """Variance-keeping weights."""
        for module in (self.wq_b, self.wk, self.weights_proj):
            init_linear(module)
        self.k_norm.reset_parameters()


class SparseLatentAttention(nn.Module):
    """One sparse layer: [..., d] to [..., d].

    ``dense_stage`` makes attention see all tokens while the indexer learns from all of it: the
    warm-up, after which selections are worth following.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.num_heads = heads
        self.qk_dim, self.v_dim = config.qk_nope_head_dim, config.v_head_dim
        self.rank = config.kv_lora_rank
        self.topk = config.index_topk
        self.scale = self.qk_dim**-0.5
        self.dense_stage = False
        self.q_a_proj = linear(hidden, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * self.qk_dim)
        self.kv_a_proj_with_mqa = linear(hidden, self.rank)
        self.kv_a_layernorm = RMSNorm(self.rank, config.rms_norm_eps)
        self.kv_b_proj = linear(self.rank, heads * (self.qk_dim + self.v_dim))
        self.g_proj = linear(hidden, heads * self.v_dim)
        self.o_proj = linear(heads * self.v_dim, hidden)
        self.indexer = Indexer(config)

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """[B, T, d] to [B, T, d], and the indexer's loss [B, T] where gradients are on."""
        inputs = self.project(x)
        o, kl = self.core(inputs, layout)
        return self.finish(o, inputs.gate), kl

    def project(self, x: Tensor) -> SparseInputs:
        """All that a token brings by itself."""
        q_latent, latent, gate = joint(x, [self.q_a_proj, self.kv_a_proj_with_mqa, self.g_proj])
        q_latent = self.q_a_layernorm(q_latent)
        query = self.q_b_proj(q_latent).unflatten(-1, (self.num_heads, self.qk_dim))
        return SparseInputs(query, self.kv_a_layernorm(latent), gate, *self.indexer(x, q_latent))

    def core(self, inputs: SparseInputs, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """Select and attend, with expanded keys and values: o [B, T, H, Dv], loss per token."""
        scores = index_scores(inputs.index_query, inputs.index_key, inputs.index_weights)
        mask = layout.visible
        if not self.dense_stage:
            mask = select(scores.detach(), mask, self.topk)
        keys, values = self.expand(inputs.latent)
        o, probabilities = attention(inputs.query, keys, values, mask, self.scale)
        kl = indexer_kl(probabilities, scores, mask) if torch.is_grad_enabled() else None
        return o, kl

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [..., H, Dqk] and values [..., H, Dv] of a latent [..., R]."""
        both = self.kv_b_proj(latent).unflatten(-1, (self.num_heads, self.qk_dim + self.v_dim))
        keys, values = both.split([self.qk_dim, self.v_dim], -1)
        return keys, values

    def absorb(self, query: Tensor) -> Tensor:
        """Queries [..., H, Dqk] to queries of the latent [..., H, R]."""
        q: Tensor = torch.einsum("...hd,hdr->...hr", query, self._up()[:, : self.qk_dim])
        return q

    def raise_values(self, mean_latent: Tensor) -> Tensor:
        """Attended latents [..., H, R] to o [..., H, Dv]."""
        o: Tensor = torch.einsum("...hr,hdr->...hd", mean_latent, self._up()[:, self.qk_dim :])
        return o

    def finish(self, o: Tensor, gate: Tensor) -> Tensor:
        """Core output [..., H, Dv] and gate [..., H Dv] to the layer's output [..., d]."""
        y: Tensor = self.o_proj(o.flatten(-2) * torch.sigmoid(gate))
        return y

    @torch.no_grad()
    def init_weights(self, residual_std: float) -> None:
        """The gate starts half open, which the output projection makes up for."""
        for module in (self.q_a_proj, self.q_b_proj, self.kv_a_proj_with_mqa, self.kv_b_proj):
            init_linear(module)
        init_linear(self.g_proj, 0.02)
        init_linear(self.o_proj, 2.0 * residual_std)
        for norm in (self.q_a_layernorm, self.kv_a_layernorm):
            norm.weight.fill_(1.0)
        self.indexer.init_weights()

    def _up(self) -> Tensor:
        """[H, Dqk + Dv, R]."""
        return self.kv_b_proj.weight.view(self.num_heads, -1, self.rank)
