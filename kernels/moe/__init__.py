"""Mixture of experts: the router's choice, and the experts' work on it.

    s = sigmoid(x W_g^T)    chosen = top-k of (s + bias)    weight = s[chosen] (/ their sum) * scale
    y = sum over chosen e of weight_e  W_down,e (SiLU(W_gate,e x) * W_up,e x)

The bias steers the choice only; it is moved by the balance rule and not by gradients.
Source: DeepSeek-V3, arXiv 2412.19437, section 2.1.2.

Shapes: x, y [N, d]; chosen experts and weights [N, k]; gate_up [E, 2 I, d]; down [E, d, I].
"""

from polymath.kernels.moe.reference import expert_load, experts, route

__all__ = ["expert_load", "experts", "route"]
