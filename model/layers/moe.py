"""Feed-forward layers: SwiGLU, and the mixture of experts with an expert that all tokens share.

Routers decide in float32 at least. Their choice bias moves by the rule of sign of DeepSeek-V3
(arXiv 2412.19437, section 2.1.2), and only when the trainer asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymath.kernels.moe import experts as apply_experts
from polymath.kernels.moe import route
from polymath.model.config import ModelConfig
from polymath.model.layers.linear import init_linear, joint, linear


@dataclass(frozen=True)
class Routing:
    """The router's choice for N tokens: ``experts`` [N, k] int64 and their ``weights`` [N, k]."""

    experts: Tensor
    weights: Tensor


class MLP(nn.Module):
    """W_down (SiLU(W_gate x) * W_up x): [..., d] to [..., d]."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, width), linear(hidden, width)
        self.down_proj = linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., d]."""
        gate, up = joint(x, [self.gate_proj, self.up_proj])
        y: Tensor = self.down_proj(F.silu(gate) * up)
        return y

    def init_weights(self, residual_std: float) -> None:
        """``residual_std`` is meant for a width of d; it is scaled to this one."""
        init_linear(self.gate_proj)
        init_linear(self.up_proj)
        hidden, width = self.down_proj.weight.shape
        init_linear(self.down_proj, residual_std * (hidden / width) ** 0.5)


class Router(nn.Module):
    """Scores tokens against experts; holds the bias that keeps their load even."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.topk = config.num_experts_per_tok
        self.normalise, self.scale = config.norm_topk_prob, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.e_score_correction_bias: Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> Routing:
        """Route tokens [N, d]."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(dtype), self.weight.to(dtype))
        bias = self.e_score_correction_bias
        return Routing(*route(logits, bias, self.topk, self.normalise, self.scale))

    @torch.no_grad()
    def update_bias(self, load: Tensor, rate: float) -> None:
        """Make experts above the mean load [E] less likely to be chosen, those below it more."""
        load = load.to(self.e_score_correction_bias)
        self.e_score_correction_bias += rate * torch.sign(load.mean() - load)


class Experts(nn.Module):
    """Stacked weights: ``gate_up_proj`` [E, 2 I, d], ``down_proj`` [E, d, I]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, hidden = config.n_routed_experts, config.hidden_size
        width = config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, width))

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """[N, d] to [N, d]."""
        return apply_experts(x, routing.experts, routing.weights, self.gate_up_proj, self.down_proj)


class MoE(nn.Module):
    """Routed experts plus the shared one: [..., d] to [..., d], and the routing of its tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        shared = config.n_shared_experts * config.moe_intermediate_size
        self.shared_experts = MLP(config.hidden_size, shared) if shared else None

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """[..., d] to [..., d]; the routing is over the flattened tokens."""
        tokens = x.flatten(0, -2)
        routing = self.gate(tokens)
        y = self.experts(tokens, routing)
        if self.shared_experts is not None:
            y = y + self.shared_experts(tokens)
        return y.view_as(x), routing

    @torch.no_grad()
    def init_weights(self, residual_std: float) -> None:
        """``residual_std`` is meant for a width of d; it is scaled to the experts' own."""
        hidden, width = self.experts.down_proj.shape[1:]
        self.gate.weight.normal_(std=hidden**-0.5)
        self.gate.e_score_correction_bias.zero_()
        self.experts.gate_up_proj.normal_(std=hidden**-0.5)
        self.experts.down_proj.normal_(std=residual_std * (hidden / width) ** 0.5)
        if self.shared_experts is not None:
            self.shared_experts.init_weights(residual_std)
