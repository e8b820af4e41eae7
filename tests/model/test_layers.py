"""Layers on their own: their formulas, caches, and the split that engines rely on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polymath.kernels.kda import kda_step
from polymath.kernels.short_conv import short_conv_step
from polymath.kernels.sparse_attention import index_scores, latent_attention, select
from polymath.model.config import ModelConfig
from polymath.model.layers import KimiDeltaAttention, Layout, MoE, SparseLatentAttention
from polymath.model.layers.norm import RMSNorm, unit_length

CONFIG = ModelConfig(
    hidden_size=64, linear_num_heads=2, num_attention_heads=2, index_n_heads=2, index_topk=5
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def hidden(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 64, dtype=torch.float64)


def layout(batch: int, length: int) -> Layout:
    return Layout.of(torch.zeros(batch, length, dtype=torch.int64), None, 16)


def kda() -> KimiDeltaAttention:
    layer = KimiDeltaAttention(CONFIG).double()
    layer.init_weights(0.1)
    return layer


def sparse() -> SparseLatentAttention:
    layer = SparseLatentAttention(CONFIG).double()
    layer.init_weights(0.1)
    return layer


def test_norms() -> None:
    x = hidden(2, 3)
    norm = RMSNorm(64, 1e-5).double()
    norm.weight.data.uniform_()
    want = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), want)
    torch.testing.assert_close(unit_length(x).norm(dim=-1), torch.ones(2, 3, dtype=x.dtype))


def test_kda_decay_is_bounded_and_spread_at_the_start() -> None:
    decay = kda().project(hidden(2, 50)).decay
    assert decay.min() > -5
    assert decay.max() < 0
    assert decay.exp().min() < 0.4
    assert decay.exp().max() > 0.98


def test_kda_inputs_are_the_published_ones() -> None:
    layer, x = kda(), hidden(1, 7)
    inputs = layer.project(x)
    z = (x @ layer.f_a_proj.weight.T) @ layer.f_b_proj.weight.T + layer.dt_bias
    a = layer.A_log.exp().repeat_interleave(32)
    torch.testing.assert_close(inputs.decay.flatten(-2), -5 * torch.sigmoid(a * z))
    torch.testing.assert_close(inputs.beta, torch.sigmoid(x @ layer.b_proj.weight.T))
    torch.testing.assert_close(inputs.gate, x @ layer.g_proj.weight.T)
    parts = [layer.q_proj, layer.k_proj, layer.v_proj]
    torch.testing.assert_close(inputs.qkv, torch.cat([x @ p.weight.T for p in parts], -1))
    q, k, v = layer.heads(inputs.qkv)
    torch.testing.assert_close(
        q.norm(dim=-1), torch.full_like(q[..., 0], 32**-0.5), rtol=1e-3, atol=0
    )
    torch.testing.assert_close(k.norm(dim=-1), torch.ones_like(k[..., 0]), rtol=1e-3, atol=0)
    torch.testing.assert_close(v.flatten(-2), F.silu(inputs.qkv[..., 128:]))


def test_kda_token_by_token_with_a_cache_equals_the_whole() -> None:
    layer, x = kda(), hidden(2, 37)
    whole = layer(x, layout(2, 37))
    tail = torch.zeros(2, 3, 192, dtype=x.dtype)
    state = torch.zeros(2, 2, 32, 32, dtype=x.dtype)
    for t in range(37):
        inputs = layer.project(x[:, t])
        mixed, tail = short_conv_step(inputs.qkv, layer.conv_weight(), tail)
        o, state = kda_step(*layer.heads(mixed), inputs.decay, inputs.beta, state)
        torch.testing.assert_close(layer.finish(o, inputs.gate), whole[:, t])


def test_sparse_layer_token_by_token_from_its_cached_latents_equals_the_whole() -> None:
    """Only the latent and the index key of past tokens are kept: the absorbed form."""
    layer, x = sparse(), hidden(2, 19)
    whole, _ = layer(x, layout(2, 19))
    kept = layer.project(x)
    for t in range(19):
        now = layer.project(x[:, t : t + 1])
        latents, keys = kept.latent[:, : t + 1], kept.index_key[:, : t + 1]
        scores = index_scores(now.index_query, keys, now.index_weights)
        mask = select(scores, torch.ones(2, 1, t + 1, dtype=torch.bool), layer.topk)
        mean, _ = latent_attention(layer.absorb(now.query), latents, mask, layer.scale)
        y = layer.finish(layer.raise_values(mean), now.gate)
        torch.testing.assert_close(y[:, 0], whole[:, t])


def test_selection_matters_only_beyond_topk() -> None:
    layer, x = sparse(), hidden(1, 12)
    at_work, _ = layer(x, layout(1, 12))
    layer.dense_stage = True
    dense, _ = layer(x, layout(1, 12))
    torch.testing.assert_close(at_work[:, :5], dense[:, :5])
    assert ((at_work - dense)[:, 5:].abs().amax(-1) > 1e-6).all()
    layer.dense_stage, layer.topk = False, 12
    torch.testing.assert_close(layer(x, layout(1, 12))[0], dense)


@pytest.mark.parametrize("dense", [True, False])
def test_the_indexer_learns_from_its_own_loss_alone_and_nothing_else_from_it(dense: bool) -> None:
    layer = sparse()
    layer.dense_stage = dense
    x = hidden(2, 12).requires_grad_()
    y, kl = layer(x, layout(2, 12))
    assert kl is not None
    own = {name for name, _ in layer.named_parameters() if name.startswith("indexer.")}
    names, parameters = zip(*layer.named_parameters(), strict=True)
    from_loss = torch.autograd.grad(
        kl.sum(), [x, *parameters], retain_graph=True, allow_unused=True
    )
    from_output = torch.autograd.grad(y.sum(), [x, *parameters], allow_unused=True)

    def touched(gradients: tuple[Tensor | None, ...]) -> set[str]:
        pairs = zip(("x", *names), gradients, strict=True)
        return {name for name, gradient in pairs if gradient is not None and gradient.any()}

    # Softmax does not see what all scores share, so the norm's bias may or may not be reached.
    assert touched(from_loss) | {"indexer.k_norm.bias"} == own
    assert touched(from_output) == {"x", *names} - own


def test_the_indexer_loss_is_not_computed_without_gradients() -> None:
    with torch.no_grad():
        assert sparse()(hidden(1, 8), layout(1, 8))[1] is None


def test_gate_closed_means_no_output() -> None:
    layer = sparse()
    inputs = layer.project(hidden(1, 4))
    o, _ = layer.core(inputs, layout(1, 4))
    assert layer.finish(o, torch.full_like(inputs.gate, -1e9)).abs().max() == 0


def test_moe_adds_the_shared_expert_to_the_chosen_ones() -> None:
    layer = MoE(CONFIG).double()
    layer.init_weights(0.1)
    x = hidden(2, 9)
    y, routing = layer(x)
    assert routing.experts.shape == (18, 2)
    assert layer.shared_experts is not None
    assert layer.shared_experts.up_proj.weight.shape == (256, 64)
    routed = layer.experts(x.flatten(0, 1), routing).view_as(x)
    torch.testing.assert_close(y - routed, layer.shared_experts(x))


def test_the_balance_rule_moves_the_bias_against_the_load() -> None:
    router = MoE(CONFIG).gate
    router.update_bias(torch.tensor([4.0, 0, 2, 2, 2, 2, 2, 2]), 0.01)
    want = torch.tensor([-0.01, 0.01, 0, 0, 0, 0, 0, 0])
    torch.testing.assert_close(router.e_score_correction_bias, want)


def test_layout_refuses_what_kda_could_not_reset() -> None:
    ids = torch.zeros(2, 48, dtype=torch.int64)
    documents = torch.ones(2, 48, dtype=torch.int32)
    documents[1, 20:] = 2
    with pytest.raises(
        ValueError, match="document starts at token 20 of lane 1, not at a multiple"
    ):
        Layout.of(ids, documents, 16)
    with pytest.raises(ValueError, match=r"document_ids is \[2, 40\], input_ids is \[2, 48\]"):
        Layout.of(ids, documents[:, :40], 16)
