"""Short causal depthwise convolution, with its tail as state.

    y_t = sum_i w[i] x[t - (K - 1) + i]          (no activation, no bias)

Shapes: x, y [B, T, C]; weight [C, K]; state [B, K - 1, C], the last inputs, oldest first, zeros at
the start of a sequence. The layer that uses it applies SiLU. Source: Mamba, arXiv 2312.00752, 3.4.
"""

from polymath.kernels.short_conv.reference import short_conv, short_conv_step

__all__ = ["short_conv", "short_conv_step"]
