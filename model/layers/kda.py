"""Kimi Delta Attention as a layer: projections, short convolution, bounded decay, gated output.

    q, k, v = SiLU(conv4(W x));  q, k to unit length, q times Dk^-1/2
    g = lower_bound * sigmoid(exp(A_log) * (W_fb W_fa x + dt_bias))      log-decay, per channel
    beta = sigmoid(W_b x)
    y = W_o [sigmoid(W_g x) * RMSNorm_head(o)]                           o from the KDA core

Source: Kimi Linear, arXiv 2510.26692, section 4; bounded decay and full-rank gate: Kimi K3, arXiv
2607.24653.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymath.kernels.kda import kda_chunked
from polymath.kernels.short_conv import short_conv
from polymath.model.config import ModelConfig
from polymath.model.layers.layout import Layout
from polymath.model.layers.linear import init_linear, joint, linear
from polymath.model.layers.norm import RMSNorm, unit_length


@dataclass(frozen=True)
class KdaInputs:
    """What the core of a KDA layer takes. P is heads times head width.

    Attributes:
        qkv: [..., 3 P], queries, keys and values before the convolution.
        decay: [..., H, D], log-decay, at most 0, float32 at least.
        beta: [..., H], step size in (0, 1), float32 at least.
        gate: [..., P], output gate before its sigmoid.
    """

    qkv: Tensor
    decay: Tensor
    beta: Tensor
    gate: Tensor


class ShortConvolution(nn.Module):
    """Holds the taps [C, 1, K] of a depthwise convolution, as ``nn.Conv1d`` does."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))

    @torch.no_grad()
    def init_weights(self) -> None:
        """Near the identity: the newest token passes, the older ones leak in."""
        self.weight.normal_(std=0.1)
        self.weight[:, :, -1] += 1.0


class KimiDeltaAttention(nn.Module):
    """One KDA layer: [..., d] to [..., d]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.linear_width
        self.num_heads = config.linear_num_heads
        self.head_dim = config.linear_head_dim
        self.lower_bound = config.linear_lower_bound
        self.chunk_size = config.chunk_size
        taps = config.linear_conv_kernel_dim
        self.q_proj, self.k_proj, self.v_proj = (linear(hidden, width) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            ShortConvolution(width, taps) for _ in range(3)
        )
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.f_a_proj = linear(hidden, self.head_dim)
        self.f_b_proj = linear(self.head_dim, width)
        self.b_proj = linear(hidden, self.num_heads)
        self.g_proj = linear(hidden, width)
        self.o_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.o_proj = linear(width, hidden)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[B, T, d] to [B, T, d]."""
        inputs = self.project(x)
        return self.finish(self.core(inputs, layout), inputs.gate)

    def project(self, x: Tensor) -> KdaInputs:
        """All that a token brings by itself."""
        q, k, v, f, b, gate = joint(
            x, [self.q_proj, self.k_proj, self.v_proj, self.f_a_proj, self.b_proj, self.g_proj]
        )
        z = (self.f_b_proj(f) + self.dt_bias).unflatten(-1, (self.num_heads, self.head_dim))
        z, b = _precise(z), _precise(b)
        decay = self.lower_bound * torch.sigmoid(self.A_log.exp().unsqueeze(-1) * z)
        return KdaInputs(torch.cat([q, k, v], -1), decay, torch.sigmoid(b), gate)

    def core(self, inputs: KdaInputs, layout: Layout) -> Tensor:
        """Mix tokens: convolution, then the delta rule. Returns o [B, T, H, D]."""
        mixed, _ = short_conv(inputs.qkv, self.conv_weight(), document_ids=layout.document_ids)
        o, _ = kda_chunked(
            *self.heads(mixed),
            inputs.decay,
            inputs.beta,
            resets=layout.resets,
            chunk_size=self.chunk_size,
        )
        return o

    def conv_weight(self) -> Tensor:
        """Taps of the joint convolution over q, k and v: [3 P, K]."""
        return torch.cat(
            [self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight]
        ).squeeze(1)

    def heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Convolved qkv [..., 3 P] to queries, keys and values [..., H, D] of the delta rule."""
        x = F.silu(mixed).view(*mixed.shape[:-1], 3, self.num_heads, self.head_dim)
        qk = unit_length(_precise(x[..., :2, :, :]))
        q, k = qk.unbind(-3)
        return q * self.head_dim**-0.5, k, x[..., 2, :, :]

    def finish(self, o: Tensor, gate: Tensor) -> Tensor:
        """Core output [..., H, D] and gate [..., P] to the layer's output [..., d]."""
        y: Tensor = self.o_proj(self.o_norm(o).flatten(-2) * torch.sigmoid(gate))
        return y

    @torch.no_grad()
    def init_weights(self, residual_std: float) -> None:
        """Decay starts between 0.99 and 0.3 per token, spread over the channels."""
        for module in (self.q_proj, self.k_proj, self.v_proj):
            init_linear(module)
        for module in (self.f_a_proj, self.b_proj, self.g_proj):
            init_linear(module)
        for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d):
            conv.init_weights()
        init_linear(self.f_b_proj, 0.02)
        init_linear(self.o_proj, residual_std)
        self.A_log.zero_()
        self.dt_bias.uniform_(-6.0, -1.0)
        self.o_norm.weight.fill_(1.0)


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
