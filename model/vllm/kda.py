"""KDA with vLLM's state cache: one state per request, and a copy of it at each block boundary.

vLLM keeps the states (mode ``align`` of its hybrid prefix cache): before a step it copies a request's
state to the block that the step will end in, and a prefix hit begins with the state at its end. Here
a step reads and writes the state of the block that vLLM names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor

from polymath.kernels.kda import kda_chunked, kda_step
from polymath.kernels.short_conv import short_conv, short_conv_step
from polymath.model.config import ModelConfig
from polymath.model.layers import KdaInputs, KimiDeltaAttention, Layout
from polymath.model.vllm.batches import Batch, cut


@dataclass
class StateBatch:
    """A batch, the cache slot of each request's state [B], and who has none yet ([B] or None)."""

    batch: Batch
    slots: Tensor
    fresh: Tensor | None


class StateMetadataBuilder(AttentionMetadataBuilder[list[StateBatch]]):
    """Names the state of each request of a step."""

    reorder_batch_threshold: int | None = 1

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.mode = vllm_config.cache_config.mamba_cache_mode

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> list[StateBatch]:
        """The batches of a step."""
        step = common_attn_metadata
        slots = mamba_get_block_table_tensor(
            step.block_table_tensor, step.seq_lens, self.kv_cache_spec, self.mode
        )[:, 0].long()
        return [
            StateBatch(batch, slots[batch.requests], _fresh(batch)) for batch in batches_of(step)
        ]


def batches_of(step: CommonAttentionMetadata) -> list[Batch]:
    """Cut a step; vLLM builds metadata per cache group, and all groups share one cut."""
    starts = step.query_start_loc_cpu.tolist()
    return cut(starts, step.seq_lens_cpu_upper_bound.tolist(), step.query_start_loc.device)


def _fresh(batch: Batch) -> Tensor | None:
    fresh = batch.context == 0
    return fresh if bool(fresh.any()) else None


class StateBackend(AttentionBackend):
    """Tells vLLM how KDA layers want their metadata."""

    @staticmethod
    def get_name() -> str:
        """Its name in logs."""
        return "POLYMATH_KDA"

    @staticmethod
    def get_impl_cls() -> Any:
        """None: the layer computes by itself."""
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> type[StateMetadataBuilder]:
        """The builder of its metadata."""
        return StateMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """It holds states, not tokens."""
        return True


def state_shapes(config: ModelConfig) -> tuple[tuple[int, ...], ...]:
    """Per request: the convolution's tail [K - 1, 3 P] and the delta rule's state [H, Dk, Dv]."""
    width, size = config.linear_width, config.linear_head_dim
    return (
        (config.linear_conv_kernel_dim - 1, 3 * width),
        (config.linear_num_heads, size, size),
    )


def state_dtypes(vllm_config: VllmConfig) -> tuple[torch.dtype, torch.dtype]:
    """The tail has the model's type, the state is float32."""
    return vllm_config.model_config.dtype, torch.float32


class CachedKda(KimiDeltaAttention, MambaBase):
    """The trainer's layer with a core that continues from cached states."""

    mamba_type: ClassVar[Any] = MambaAttentionBackendEnum.GDN_ATTN

    def __init__(self, config: ModelConfig, vllm_config: VllmConfig, name: str) -> None:
        super().__init__(config)
        self._name = name
        self._shapes, self._dtypes = state_shapes(config), state_dtypes(vllm_config)
        vllm_config.compilation_config.static_forward_context[name] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """For vLLM's allocator."""
        return self._shapes

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """For vLLM's allocator."""
        return self._dtypes

    def get_attn_backend(self) -> type[AttentionBackend]:
        """For vLLM's metadata."""
        return StateBackend

    def core(self, inputs: KdaInputs, layout: Layout) -> Tensor:
        """Mix the tokens of a step [N, ...] with their requests' states. Returns o [N, H, D]."""
        out = inputs.decay.new_zeros(inputs.decay.shape, dtype=inputs.qkv.dtype)
        metadata = get_forward_context().attn_metadata
        if metadata is not None:
            for part in metadata[self._name]:
                self._run(part, inputs, out)
        return out

    def _run(self, part: StateBatch, inputs: KdaInputs, out: Tensor) -> None:
        batch = part.batch
        tails, states = cast(tuple[Tensor, Tensor], self.kv_cache)
        qkv, decay, beta = (batch.gather(x) for x in (inputs.qkv, inputs.decay, inputs.beta))
        tail, state = tails.index_select(0, part.slots), states.index_select(0, part.slots)
        if part.fresh is not None:
            tail[part.fresh] = 0.0
            state[part.fresh] = 0.0
        if batch.width == 1:
            mixed, tail = short_conv_step(qkv[:, 0], self.conv_weight(), tail)
            o, state = kda_step(*self.heads(mixed), decay[:, 0], beta[:, 0], state)
            o = o.unsqueeze(1)
        else:
            mixed, tail = short_conv(qkv, self.conv_weight(), tail, lengths=batch.lengths)
            used = batch.used()
            if used is not None:
                # Padding must leave the state as it is.
                decay = decay * used[..., None, None]
                beta = beta * used[..., None]
            o, state = kda_chunked(
                *self.heads(mixed), decay, beta, state, chunk_size=self.chunk_size
            )
        tails.index_copy_(0, part.slots, tail.to(tails.dtype))
        states.index_copy_(0, part.slots, state)
        batch.scatter(out, o)
