"""The whole policy: packing changes nothing, sums add up, weights and stages are what they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polymath.model.config import INDEXED, LINEAR, ModelConfig
from polymath.model.hybrid import HybridForCausalLM, IndexerStage

SMALL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    layer_types=(LINEAR, INDEXED, LINEAR),
    first_k_dense_replace=1,
    intermediate_size=64,
    linear_num_heads=2,
    num_attention_heads=2,
    q_lora_rank=32,
    kv_lora_rank=32,
    index_n_heads=2,
    index_topk=8,
    moe_intermediate_size=32,
    embedding_multiplier=32**0.5,
)


def build(config: ModelConfig = SMALL, dtype: torch.dtype = torch.float64) -> HybridForCausalLM:
    torch.manual_seed(0)
    model = HybridForCausalLM(config).to(dtype)
    model.init_weights()
    return model


def pack(documents: list[Tensor], lane: int) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """First come, first laid, each at a multiple of 16. Returns ids, documents and the places."""
    places: list[tuple[int, int]] = []
    used = [0]
    for document in documents:
        if used[-1] + len(document) > lane:
            used.append(0)
        places.append((len(used) - 1, used[-1]))
        used[-1] += -(-len(document) // 16) * 16
    ids = torch.full((len(used), lane), 63)
    owners = torch.zeros(len(used), lane, dtype=torch.int32)
    for number, (document, (row, start)) in enumerate(zip(documents, places, strict=True)):
        ids[row, start : start + len(document)] = document
        owners[row, start : start + len(document)] = number + 1
    return ids, owners, places


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    lane=st.sampled_from([48, 96, 101]),
)
def test_packed_equals_one_by_one_in_values_sums_and_gradients(
    seed: int, lengths: list[int], lane: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    documents = [torch.randint(0, 64, (n,), generator=rng) for n in lengths]
    model = build()
    ids, owners, places = pack(documents, lane)
    packed = model(ids, owners)
    weight = torch.randn(64, generator=rng, dtype=torch.float64)
    total, alone_kl, alone_load = torch.zeros((), dtype=torch.float64), 0.0, 0.0
    packed_total = torch.zeros((), dtype=torch.float64)
    for document, (row, start) in zip(documents, places, strict=True):
        alone = model(document.unsqueeze(0))
        mine = packed.hidden[row, start : start + len(document)]
        torch.testing.assert_close(mine, alone.hidden[0])
        total = total + (model.logits(alone.hidden) * weight).sum()
        packed_total = packed_total + (model.logits(mine) * weight).sum()
        alone_kl = alone_kl + alone.aux["indexer_kl"].sum
        alone_load = alone_load + alone.aux["expert_load"].sum
    torch.testing.assert_close(packed.aux["indexer_kl"].sum, alone_kl)
    torch.testing.assert_close(packed.aux["expert_load"].sum, alone_load)
    assert packed.aux["expert_load"].count == packed.aux["indexer_kl"].count == sum(lengths)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(packed_total + packed.aux["indexer_kl"].sum, parameters)
    want = torch.autograd.grad(total + alone_kl, parameters)
    for a, b in zip(ours, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_no_token_sees_a_later_one() -> None:
    model, ids = build(), torch.randint(0, 64, (1, 50))
    changed = ids.clone()
    changed[0, 30:] = (ids[0, 30:] + 1) % 64
    before, after = model(ids).hidden, model(changed).hidden
    torch.testing.assert_close(before[:, :30], after[:, :30])
    assert ((before - after)[0, 30:].abs().amax(-1) > 0).all()


def test_padding_is_finite_forward_and_backward() -> None:
    model = build(dtype=torch.float32)
    owners = torch.zeros(2, 64, dtype=torch.int32)
    owners[0, :20] = 1
    out = model(torch.zeros(2, 64, dtype=torch.int64), owners)
    (model.logits(out.hidden).sum() + out.aux["indexer_kl"].sum).backward()
    assert out.hidden.isfinite().all()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_float32_is_close_to_float64() -> None:
    ids = torch.randint(0, 64, (2, 80))
    exact = build()
    single = build(dtype=torch.float32)
    single.load_state_dict(exact.state_dict())
    with torch.no_grad():
        want = exact.logits(exact(ids).hidden).log_softmax(-1)
        ours = single.logits(single(ids).hidden).log_softmax(-1)
    assert (ours - want).abs().max() < 1e-4


def test_in_the_dense_stage_topk_plays_no_part() -> None:
    ids = torch.randint(0, 64, (1, 40))
    model = build()
    sparse = model(ids).hidden
    model.set_indexer_stage(IndexerStage.DENSE)
    dense = model(ids).hidden
    assert not torch.allclose(sparse, dense)
    wide = build(SMALL.replace(index_topk=40))
    torch.testing.assert_close(wide(ids).hidden, dense)
    model.set_indexer_stage(IndexerStage.SPARSE)
    torch.testing.assert_close(model(ids).hidden, sparse)


def test_aux_sums_add_up_over_micro_batches() -> None:
    model, ids = build(), torch.randint(0, 64, (4, 32))
    whole = model(ids).aux
    parts = [model(ids[i : i + 2]).aux for i in (0, 2)]
    for name, total in whole.items():
        joined = parts[0][name] + parts[1][name]
        torch.testing.assert_close(joined.sum, total.sum)
        torch.testing.assert_close(joined.count, total.count)


def test_without_gradients_there_is_load_but_no_indexer_loss() -> None:
    with torch.no_grad():
        aux = build()(torch.randint(0, 64, (1, 8))).aux
    assert set(aux) == {"expert_load"}
    assert aux["expert_load"].sum.shape == (2, 8)
    assert aux["expert_load"].sum.sum() == 2 * 8 * 2


def test_router_bias_moves_only_when_asked_and_evens_the_load() -> None:
    model, ids = build(dtype=torch.float32), torch.randint(0, 64, (16, 32))
    skew = torch.linspace(0.6, 0, 8)
    for layer in model.model.layers[1:]:
        layer.mlp.gate.e_score_correction_bias.copy_(skew)

    def imbalance() -> Tensor:
        with torch.no_grad():
            load = model(ids).aux["expert_load"].sum
        assert torch.equal(model.model.layers[1].mlp.gate.e_score_correction_bias, bias)
        return load

    bias = skew.clone()
    load = imbalance()
    assert (load.max(-1).values / load.mean(-1)).min() > 1.5
    for _ in range(60):
        model.update_router_bias(load, 0.02)
        bias = model.model.layers[1].mlp.gate.e_score_correction_bias.clone()
        load = imbalance()
    assert (load.max(-1).values / load.mean(-1)).max() < 1.5


def test_router_bias_needs_one_row_of_load_per_layer_with_experts() -> None:
    with pytest.raises(ValueError, match="longer|shorter"):
        build().update_router_bias(torch.ones(3, 8), 0.01)


def test_tied_weights_are_stored_once_and_untied_ones_apart() -> None:
    tied, untied = build(), build(SMALL.replace(tie_word_embeddings=False))
    assert "lm_head.weight" not in tied.state_dict()
    assert untied.num_parameters - tied.num_parameters == 64 * 32
    hidden = torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(untied.logits(hidden), hidden @ untied.lm_head.weight.T)
    torch.testing.assert_close(tied.logits(hidden), hidden @ tied.model.embed_tokens.weight.T)


def test_the_starter_has_the_size_that_was_planned() -> None:
    with torch.device("meta"):
        model = HybridForCausalLM(ModelConfig())
    assert model.num_parameters == 2_490_732
    names = set(model.state_dict())
    assert "model.layers.0.self_attn.f_b_proj.weight" in names
    assert "model.layers.3.self_attn.kv_a_proj_with_mqa.weight" in names
    assert "model.layers.3.self_attn.indexer.weights_proj.weight" in names
    assert "model.layers.3.mlp.gate.e_score_correction_bias" in names
    assert "model.layers.3.mlp.experts.gate_up_proj" in names


def test_fresh_activations_and_logits_have_unit_size() -> None:
    model, ids = build(ModelConfig(), torch.float32), torch.randint(0, 1024, (4, 64))
    with torch.no_grad():
        hidden = model(ids).hidden
        logits = model.logits(hidden)
    assert 0.9 < hidden.std() < 1.1
    assert 0.8 < logits.std() < 1.25


def test_every_parameter_learns_and_a_batch_can_be_learned_by_heart() -> None:
    torch.manual_seed(1)
    model = build(dtype=torch.float32)
    start = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)
    ids = torch.randint(0, 64, (8, 24))
    losses = []
    for _ in range(50):
        out = model(ids)
        logits = model.logits(out.hidden[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        kl = out.aux["indexer_kl"]
        optimizer.zero_grad()
        (loss + kl.sum / kl.count).backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 4
    assert losses[-1] < 0.5
    assert all(not torch.equal(value, start[name]) for name, value in model.named_parameters())
