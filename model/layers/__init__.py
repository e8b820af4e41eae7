"""The layers of the hybrid policy.

Each layer is split into ``project`` (inputs of its core), ``core`` (everything that looks at other
tokens) and ``finish``; ``project`` and ``finish`` work on any leading shape. An engine with caches
subclasses a layer and replaces ``core`` alone, so that its parameters are the trainer's.
"""

from polymath.model.layers.kda import KdaInputs, KimiDeltaAttention
from polymath.model.layers.layout import Layout
from polymath.model.layers.moe import MLP, MoE, Routing
from polymath.model.layers.norm import RMSNorm
from polymath.model.layers.sparse_attention import SparseInputs, SparseLatentAttention

__all__ = [
    "MLP",
    "KdaInputs",
    "KimiDeltaAttention",
    "Layout",
    "MoE",
    "RMSNorm",
    "Routing",
    "SparseInputs",
    "SparseLatentAttention",
]
