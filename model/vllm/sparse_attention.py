"""Sparse latent attention with vLLM's paged cache: one entry per token, its latent and its index key.

Attention is absorbed: queries meet latents directly, so nothing is expanded per cached token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from polymath.kernels.sparse_attention import index_scores, latent_attention, select
from polymath.model.config import ModelConfig
from polymath.model.layers import Layout, SparseInputs, SparseLatentAttention
from polymath.model.vllm.batches import Batch
from polymath.model.vllm.kda import batches_of

# Queries of a prefill that look at the cache together: bounds the score matrix.
_QUERY_TILE = 256


@dataclass
class PageBatch:
    """A batch and the cache pages of its requests, [B, pages of the longest]."""

    batch: Batch
    pages: Tensor


@dataclass
class PageMetadata:
    """Where this step's tokens go ([N] slots), and what each batch looks at."""

    slots: Tensor
    parts: list[PageBatch]


class PageMetadataBuilder(AttentionMetadataBuilder[PageMetadata]):
    """Names the cache pages of each request of a step."""

    reorder_batch_threshold: int | None = 1

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.block_size: int = kv_cache_spec.block_size

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PageMetadata:
        """The batches of a step."""
        step = common_attn_metadata
        parts = [
            PageBatch(batch, self._pages(step.block_table_tensor, batch))
            for batch in batches_of(step)
        ]
        return PageMetadata(step.slot_mapping[: step.num_actual_tokens].long(), parts)

    def _pages(self, table: Tensor, batch: Batch) -> Tensor:
        count = -(-batch.longest // self.block_size)
        return table[batch.requests, :count].long()


class PageBackend(AttentionBackend):
    """Tells vLLM how sparse layers want their cache and metadata."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Any page size that is a multiple of 16."""
        return [MultipleOf(16)]

    @staticmethod
    def get_name() -> str:
        """Its name in logs."""
        return "POLYMATH_SPARSE"

    @staticmethod
    def get_impl_cls() -> Any:
        """None: the layer computes by itself."""
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> type[PageMetadataBuilder]:
        """The builder of its metadata."""
        return PageMetadataBuilder


class CachedSparseAttention(SparseLatentAttention, AttentionLayerBase):
    """The trainer's layer with a core that looks at cached tokens."""

    kv_cache: Tensor

    def __init__(self, config: ModelConfig, vllm_config: VllmConfig, name: str) -> None:
        super().__init__(config)
        self._name = name
        self._width = config.kv_lora_rank + config.index_head_dim
        self._dtype = vllm_config.model_config.dtype
        vllm_config.compilation_config.static_forward_context[name] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        """For vLLM's metadata."""
        return PageBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """For vLLM's allocator, which counts a key and a value: half an entry each."""
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self._width // 2,
            dtype=self._dtype,
        )

    def core(self, inputs: SparseInputs, layout: Layout) -> tuple[Tensor, None]:
        """Store the tokens of a step [N, ...], then attend. Returns o [N, H, Dv]."""
        query = self.absorb(inputs.query)
        mean = query.new_zeros(query.shape)
        metadata = get_forward_context().attn_metadata
        if metadata is not None:
            step = metadata[self._name]
            latents, keys = self._pages()
            size = latents.shape[1]
            page, place = step.slots // size, step.slots % size
            latents[page, place] = inputs.latent[: len(page)].to(latents.dtype)
            keys[page, place] = inputs.index_key[: len(page)].to(keys.dtype)
            for part in step.parts:
                self._attend(part, query, inputs, mean)
        return self.raise_values(mean), None

    def _pages(self) -> tuple[Tensor, Tensor]:
        """The cache as latents [pages, tokens, R] and index keys [pages, tokens, Di].

        A page holds all its latents and then all its keys, so that each can be read by itself.
        """
        count, _, size, _ = self.kv_cache.shape
        pages = self.kv_cache.view(count, size * self._width)
        latents, keys = pages[:, : size * self.rank], pages[:, size * self.rank :]
        return latents.view(count, size, -1), keys.view(count, size, -1)

    def _attend(self, part: PageBatch, query: Tensor, inputs: SparseInputs, mean: Tensor) -> None:
        batch = part.batch
        latents, keys = self._pages()
        q, index_q, weights = (
            batch.gather(x) for x in (query, inputs.index_query, inputs.index_weights)
        )
        place = torch.arange(batch.longest, device=query.device)
        asked = batch.context[:, None] + torch.arange(batch.width, device=query.device)
        choose = batch.longest > self.topk and not self.dense_stage
        cached_keys = _read(keys, part.pages)[:, : batch.longest] if choose else keys
        if choose and batch.width == 1:
            mask = place <= asked[:, :, None]
            mask = select(index_scores(index_q, cached_keys, weights), mask, self.topk)
            places, mask = _listed(mask[:, 0], self.topk)
            chosen = latents[part.pages.gather(1, places // keys.shape[1]), places % keys.shape[1]]
            batch.scatter(mean, latent_attention(q, chosen, mask[:, None], self.scale)[0])
            return
        cached = _read(latents, part.pages)[:, : batch.longest]
        parts = []
        for start in range(0, batch.width, _QUERY_TILE):
            tile = slice(start, start + _QUERY_TILE)
            mask = place <= asked[:, tile, None]
            if choose:
                scores = index_scores(index_q[:, tile], cached_keys, weights[:, tile])
                mask = select(scores, mask, self.topk)
            parts.append(latent_attention(q[:, tile], cached, mask, self.scale)[0])
        batch.scatter(mean, torch.cat(parts, 1))


def _read(cache: Tensor, pages: Tensor) -> Tensor:
    """Pages [B, P] of a cache [pages, tokens, W], end to end: [B, P * tokens, W]."""
    found = cache.index_select(0, pages.flatten())
    return found.view(len(pages), -1, cache.shape[-1])


def _listed(mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Where a mask [B, S] is set, as at most ``count`` places a row, and which of them are used."""
    row, place = mask.nonzero(as_tuple=True)
    sizes = mask.sum(-1)
    first = sizes.cumsum(0) - sizes
    places = place.new_zeros(len(mask), count)
    places[row, torch.arange(len(row), device=row.device) - first[row]] = place
    return places, torch.arange(count, device=row.device) < sizes[:, None]
