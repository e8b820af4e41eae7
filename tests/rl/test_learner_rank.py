"""One rank in this process: what is learned does not depend on how it is computed.

The referee below knows nothing of packing: it runs each row alone and adds up token by token.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from polymath.model import checkpoint
from polymath.model.config import INDEXED, LINEAR, ModelConfig
from polymath.model.hybrid import HybridForCausalLM
from polymath.rl.learner.base import NonFiniteError, StateError
from polymath.rl.learner.fsdp import LOOPBACK, FsdpRank, StepWork
from polymath.rl.learner.schema import LearnerConfig
from polymath.rl.learner.shards import write_manifest
from polymath.rl.learner.spec import rank_spec
from polymath.rl.losses.base import Denominators
from polymath.rl.losses.schema import AlgorithmConfig
from polymath.rl.packing import Budget, RowSize, plan, sequence_tokens
from polymath.rollout.types import Row

MODEL = ModelConfig(
    path="",
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    layer_types=(LINEAR, INDEXED),
    linear_num_heads=2,
    num_attention_heads=2,
    q_lora_rank=32,
    kv_lora_rank=32,
    index_n_heads=2,
    index_topk=12,
    n_routed_experts=4,
    n_shared_experts=1,
    moe_intermediate_size=32,
)
LEARNER = LearnerConfig(
    threads=1, compute_dtype="float64", learning_rate=1e-2, muon_learning_rate=1e-2
)
ALGORITHM = AlgorithmConfig()
TEMPERATURE = 0.8


def make_rows(seed, count=7, longest=40):
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        length = int(generator.integers(3, longest))
        mask = generator.random(length) < 0.6
        mask[0], mask[-1] = False, True
        rows.append(
            Row(
                episode=f"e{index // 2}",
                group=f"g{index // 4}",
                tokens=generator.integers(0, 64, length).astype(np.int32),
                loss_mask=mask,
                logprobs=generator.normal(-4, 0.3, length).astype(np.float32),
                advantages=np.full(length, generator.normal(), np.float32),
                versions=np.zeros(length, np.int32),
            )
        )
    return rows


def work_for(rows, budget, ranks=1):
    sizes = [RowSize.of(row) for row in rows]
    counts = sequence_tokens(sizes)
    denominators = Denominators(sum(counts.values()), len(counts))
    context = sum(size.tokens for size in sizes if size.loss_tokens)
    return [StepWork(own, counts, denominators, context) for own in plan(sizes, ranks, budget)]


@pytest.fixture
def start():
    """Starts a rank in this process, one after another."""

    def started(learner=LEARNER, algorithm=ALGORITHM, model=MODEL):
        if dist.is_initialized():
            dist.destroy_process_group()
        rank = FsdpRank(rank_spec(learner, algorithm, model, TEMPERATURE), 0)
        rank.start(LOOPBACK, rank.host(LOOPBACK))
        return rank

    yield started
    if dist.is_initialized():
        dist.destroy_process_group()


def run_step(rank, rows, budget=None):
    (work,) = work_for(rows, budget or rank._spec.budget)
    return rank.step(work, dict(enumerate(rows)))


def gradients(rank, rows, budget, ranks=1):
    """The sum of what each of ``ranks`` ranks would add."""
    total = {}
    for work in work_for(rows, budget, ranks):
        for name, gradient in rank.gradients(work, dict(enumerate(rows))).items():
            total[name] = total.get(name, 0) + gradient
    return total


def weights(rank):
    return {name: tensor.clone() for name, tensor in rank._whole_weights().items()}


def assert_same(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name in expected:
        scale = expected[name].abs().max().clamp_min(1e-12)
        assert (found[name] - expected[name]).abs().max() / scale < tolerance, name


def unsharded(rank):
    model = HybridForCausalLM(MODEL).double()
    model.load_state_dict(weights(rank))
    return model


def referee(rank, rows):
    """The gradient of PPO's clipped loss and the indexer's KL, row by row and token by token."""
    model = unsharded(rank)
    loss_tokens = sum(row.loss_tokens for row in rows)
    context = sum(len(row.tokens) for row in rows)
    loss = 0.0
    for row in rows:
        output = model(torch.from_numpy(row.tokens).long()[None])
        logprobs = (model.logits(output.hidden[0]) / TEMPERATURE).log_softmax(-1)
        for t in np.flatnonzero(row.loss_mask):
            ratio = (logprobs[t - 1, row.tokens[t]] - float(row.logprobs[t])).exp()
            advantage = float(row.advantages[t])
            loss -= (
                torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage) / loss_tokens
            )
        loss += output.aux["indexer_kl"].sum / context
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_the_packed_gradient_is_that_of_every_row_alone(start):
    rank, rows = start(), make_rows(1)
    assert_same(gradients(rank, rows, Budget(48, 96, 16)), referee(rank, rows), 1e-9)


@pytest.mark.parametrize(
    ("budget", "ranks"),
    [
        (Budget(1, 48, 16), 1),
        (Budget(96, 10_000, 16), 1),
        (Budget(10_000, 10_000, 16), 1),
        (Budget(48, 96, 16), 2),
        (Budget(48, 96, 16), 3),
        (Budget(48, 96, 16), 12),
    ],
)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_no_way_of_cutting_the_batch_changes_the_gradient(start, budget, ranks, aggregation):
    rank, rows = start(algorithm=AlgorithmConfig(aggregation=aggregation)), make_rows(2)
    expected = gradients(rank, rows, Budget(48, 96, 16))
    assert_same(gradients(rank, rows, budget, ranks), expected, 1e-9)


def test_the_order_of_rows_does_not_change_the_gradient(start):
    rank, rows = start(), make_rows(3)
    expected = gradients(rank, rows, Budget(48, 96, 16))
    assert_same(gradients(rank, rows[::-1], Budget(48, 96, 16)), expected, 1e-9)


def test_what_lies_on_masked_tokens_changes_nothing_at_all(start):
    rank, rows = start(), make_rows(4)
    poisoned = [
        replace(
            row,
            advantages=np.where(row.loss_mask, row.advantages, 1e6).astype(np.float32),
            logprobs=np.where(row.loss_mask, row.logprobs, np.nan).astype(np.float32),
        )
        for row in rows
    ]
    expected = gradients(rank, rows, Budget(48, 96, 16))
    found = gradients(rank, poisoned, Budget(48, 96, 16))
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def test_a_row_without_loss_tokens_changes_nothing(start):
    rank, rows = start(), make_rows(5)
    silent = replace(rows[0], episode="silent", loss_mask=np.zeros(len(rows[0].tokens), bool))
    expected = gradients(rank, rows, Budget(48, 96, 16))
    assert_same(gradients(rank, [*rows, silent], Budget(48, 96, 16)), expected, 1e-12)


def test_log_probabilities_are_those_of_each_document_alone(start):
    rank, rows = start(), make_rows(6)
    (work,) = work_for(rows, Budget(48, 96, 16))
    found = rank.logprobs(work.plan, dict(enumerate(rows)), 0.5)
    model = unsharded(rank)
    for index, row in enumerate(rows):
        alone = model(torch.from_numpy(row.tokens).long()[None])
        logits = model.logits(alone.hidden[0]) / 0.5
        own = np.flatnonzero(row.loss_mask)
        expected = logits.log_softmax(-1)[own - 1, row.tokens[own]].detach().numpy()
        np.testing.assert_allclose(found[index], expected, atol=1e-5)


def test_steps_lower_the_loss_and_report_it(start):
    rank, rows = start(algorithm=AlgorithmConfig(loss="cross_entropy")), make_rows(7)
    losses = []
    for _ in range(8):
        step, metrics = run_step(rank, rows)
        losses.append(metrics["loss/term/cross_entropy"])
    assert step == 8
    assert losses[-1] < losses[0] - 0.5
    assert metrics["tokens/trained"] == sum(row.loss_tokens for row in rows)
    assert metrics["loss/total"] == pytest.approx(
        metrics["loss/term/cross_entropy"] + metrics["loss/term/indexer_kl"]
    )
    assert all(np.isfinite(value) for value in metrics.values())


def test_metrics_do_not_depend_on_the_cut(start):
    rows, budgets = make_rows(8), (Budget(1, 48, 16), Budget(96, 10_000, 16))
    found = [run_step(start(), rows, budget)[1] for budget in budgets]
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert value == pytest.approx(found[1][name], rel=1e-8), name


def test_gradients_are_scaled_to_the_allowed_norm(start):
    rank, rows = start(LEARNER.replace(max_grad_norm=1e-3)), make_rows(9)
    (work,) = work_for(rows, rank._spec.budget)
    own = rank.gradients(work, dict(enumerate(rows)))
    norm = torch.stack([g.norm() for g in own.values()]).norm()
    _, metrics = rank.step(work, dict(enumerate(rows)))
    assert metrics["optimizer/grad_norm"] == pytest.approx(float(norm), rel=1e-9)
    moments = dict(rank._optimizers.state())
    clipped = {n: m.full_tensor() / 0.1 for n, m in moments.items() if n.endswith("exp_avg")}
    assert torch.stack([m.norm() for m in clipped.values()]).norm() == pytest.approx(1e-3, rel=1e-2)


def test_the_kl_to_the_reference_grows_from_zero(start):
    algorithm = AlgorithmConfig(kl_coefficient=0.1)
    rank, rows = start(algorithm=algorithm), make_rows(10)
    first = run_step(rank, rows)[1]
    second = run_step(rank, rows)[1]
    assert first["policy/reference_kl"] == pytest.approx(0, abs=1e-12)
    assert second["policy/reference_kl"] > 1e-4
    assert second["loss/term/reference_kl"] > 0


def test_the_router_bias_moves_against_the_load(start):
    rank, rows = start(LEARNER.replace(router_bias_rate=0.01)), make_rows(11)
    run_step(rank, rows)
    bias = weights(rank)["model.layers.0.mlp.gate.e_score_correction_bias"]
    assert bias.abs().max() == pytest.approx(0.01)
    assert bias.min() < 0 < bias.max()


# Gates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["advantages", "logprobs"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_row_stops_the_step_before_anything_moves(start, what, value):
    rank, rows = start(), make_rows(12)
    run_step(rank, rows)
    before = full_state(rank)
    poisoned = getattr(rows[3], what).copy()
    poisoned[np.flatnonzero(rows[3].loss_mask)[0]] = value
    rows[3] = replace(rows[3], **{what: poisoned})
    with pytest.raises(NonFiniteError, match=f"rank 0: episode e1: {what} hold .*not made"):
        run_step(rank, rows)
    assert_untouched(rank, before)


def test_a_bad_loss_names_its_term_and_its_episodes(start):
    rank, rows = start(), make_rows(13)
    run_step(rank, rows)
    before = full_state(rank)
    rank._spec = replace(rank._spec, temperature=float("nan"))
    with pytest.raises(NonFiniteError, match=r"loss term policy is nan in micro-batch 0 .*e0"):
        run_step(rank, rows)
    assert_untouched(rank, before)


def test_a_bad_gradient_names_its_parameter(start):
    rank, rows = start(), make_rows(14)
    run_step(rank, rows)
    before = full_state(rank)
    name = "model.layers.0.self_attn.o_proj.weight"
    hook = dict(rank._model.named_parameters())[name].register_post_accumulate_grad_hook(
        lambda param: param.grad.mul_(float("inf"))
    )
    with pytest.raises(NonFiniteError, match=f"gradient of {name} .*1 param"):
        run_step(rank, rows)
    assert_untouched(rank, before)
    hook.remove()
    assert run_step(rank, rows)[0] == 2


def full_state(rank):
    state = {name: getattr(t, "full_tensor", lambda t=t: t)().clone() for name, t in rank._state()}
    return state, rank._optimizers.steps


def assert_untouched(rank, before):
    state, steps = full_state(rank)
    assert steps == before[1]
    assert state.keys() == before[0].keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, before[0][name]), name


# Saved state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resuming_is_bitwise_the_same_as_going_on(start, tmp_path, optimizer):
    learner = LEARNER.replace(optimizer=optimizer, compute_dtype="float32")
    batches = [make_rows(seed) for seed in (20, 21, 22)]
    rank = start(learner)
    run_step(rank, batches[0])
    write_manifest(tmp_path, 1, [rank.save(str(tmp_path))])
    expected = [run_step(rank, batch) for batch in batches[1:]]
    state = full_state(rank)

    resumed = start(learner)
    run_step(resumed, batches[2])  # something to forget
    assert resumed.load(str(tmp_path)) == 1
    assert [run_step(resumed, batch) for batch in batches[1:]] == expected
    assert_untouched(resumed, state)


def test_saving_moves_nothing_even_before_the_first_step(start, tmp_path):
    rank = start()
    before = weights(rank)
    rank.save(str(tmp_path))
    for name, tensor in weights(rank).items():
        assert torch.equal(tensor, before[name]), name


def test_state_of_another_optimizer_or_model_is_refused(start, tmp_path):
    rank = start()
    write_manifest(tmp_path, 0, [rank.save(str(tmp_path))])
    other = start(LEARNER.replace(optimizer="muon"))
    with pytest.raises(StateError, match="of another model or optimizer"):
        other.load(str(tmp_path))
    wider = start(model=MODEL.replace(moe_intermediate_size=64))
    kept = weights(wider)
    with pytest.raises(StateError, match=r"has shape"):
        wider.load(str(tmp_path))
    for name, tensor in weights(wider).items():
        assert torch.equal(tensor, kept[name]), name


def test_an_exported_policy_can_be_started_from(start, tmp_path):
    rank, rows = start(LEARNER.replace(compute_dtype="float32")), make_rows(23)
    run_step(rank, rows)
    rank.export(str(tmp_path / "policy"))
    expected = weights(rank)
    again = start(
        LEARNER.replace(compute_dtype="float32"),
        model=MODEL.replace(path=str(tmp_path / "policy")),
    )
    for name, tensor in weights(again).items():
        assert torch.equal(tensor, expected[name]), name


def test_the_published_file_holds_the_weights_and_its_digest(start, tmp_path):
    rank = start(LEARNER.replace(compute_dtype="float32"))
    digest = rank.publish(str(tmp_path / "new" / "w.safetensors"))
    tensors = checkpoint.load_tensors(tmp_path / "new" / "w.safetensors")
    assert checkpoint.digest(tensors) == digest == checkpoint.digest(weights(rank))


def test_sparse_layers_see_everything_in_the_dense_steps_only(start):
    rows = make_rows(11, longest=40)  # longer than index_topk
    sparse_loss = run_step(start(LEARNER), rows)[1]["loss/total"]
    rank = start(LEARNER.replace(dense_steps=1))
    assert run_step(rank, rows)[1]["loss/total"] != sparse_loss
    assert rank._model.model.layers[1].self_attn.dense_stage
    run_step(rank, rows)
    assert not rank._model.model.layers[1].self_attn.dense_stage
