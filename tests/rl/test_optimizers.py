"""Muon and the schedules against what their definitions say."""

import copy

import pytest
import torch

from polymath.errors import UserError
from polymath.rl.optimizers import Muon, Optimizers, OptimizerSpec, Schedule, orthogonalise

SPEC = OptimizerSpec("muon", 1e-3, 2e-2, 0.1, (0.9, 0.95), 1e-8, 0.95)
CONSTANT = Schedule("constant", 0, 0, 0.0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("shape", [(32, 64), (64, 32), (3, 16, 48)])
def test_orthogonalising_keeps_the_singular_vectors_and_evens_the_values(shape, generator):
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.mT @ orthogonalise(matrix) @ vh.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    off = inner - torch.diag_embed(values)
    assert off.abs().max() < 1e-9
    assert ((values > 0.6) & (values < 1.3)).all()


def test_muon_follows_torchs_own_on_matrices(generator):
    ours = torch.nn.Parameter(torch.randn(48, 32, generator=generator))
    theirs, start = copy.deepcopy(ours), ours.detach().clone()
    mine = Muon([ours], lr=0.02, momentum=0.95, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        ours.grad = torch.randn(48, 32, generator=generator)
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
    # torch rounds to bfloat16 inside.
    assert (ours - theirs).norm() < 0.03 * (ours - start).norm()


def test_experts_of_a_stack_are_matrices_of_their_own(generator):
    stack = torch.nn.Parameter(torch.randn(3, 16, 8, generator=generator))
    single = [torch.nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    stack.grad = (
        torch.randn(3, 16, 8, generator=generator) * torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    )
    for matrix, gradient in zip(single, stack.grad, strict=True):
        matrix.grad = gradient.clone()
    Muon([stack], lr=0.1, momentum=0.95, weight_decay=0.0).step()
    Muon(single, lr=0.1, momentum=0.95, weight_decay=0.0).step()
    torch.testing.assert_close(stack.detach(), torch.stack([m.detach() for m in single]))


def named_parameters():
    shapes = {
        "model.embed_tokens.weight": (8, 4),
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.layers.0.self_attn.q_conv1d.weight": (4, 1, 4),
        "model.layers.0.mlp.gate.weight": (2, 4),
        "model.layers.0.mlp.experts.down_proj": (2, 4, 4),
        "model.layers.0.mlp.shared_experts.gate_proj.weight": (4, 4),
        "model.layers.0.self_attn.dt_bias": (4,),
        "model.norm.weight": (4,),
    }
    return {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}


def test_muon_takes_the_hidden_matrices_only():
    named = named_parameters()
    optimizers = Optimizers(named.items(), SPEC, CONSTANT)
    for param in named.values():
        param.grad = torch.ones_like(param)
    optimizers.step()
    muon = {
        name.split(":")[0] for name, _ in optimizers.state() if name.endswith("momentum_buffer")
    }
    assert muon == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.experts.down_proj",
        "model.layers.0.mlp.shared_experts.gate_proj.weight",
    }
    adamw = {name.split(":")[0] for name, _ in optimizers.state() if name.endswith("exp_avg")}
    assert adamw == named.keys() - muon


def test_vectors_do_not_decay():
    named = named_parameters()
    optimizers = Optimizers(named.items(), SPEC, CONSTANT)
    for param in named.values():
        param.grad = torch.zeros_like(param)
    optimizers.step()
    still = {name for name, param in named.items() if (param == 1).all()}
    assert still == {"model.layers.0.self_attn.dt_bias", "model.norm.weight"}


def test_prepared_state_equals_that_of_a_fresh_optimizer():
    named = named_parameters()
    prepared = Optimizers(named.items(), SPEC, CONSTANT)
    prepared.prepare_state()
    assert {name for name, param in named.items() if (param != 1).any()} == set()
    twin = copy.deepcopy(named)
    fresh = Optimizers(twin.items(), SPEC, CONSTANT)
    for params in (named, twin):
        for param in params.values():
            param.grad = torch.ones_like(param)
    prepared.step()
    fresh.step()
    for name in named:
        assert torch.equal(named[name], twin[name])
    assert [n for n, _ in prepared.state()] == [n for n, _ in fresh.state()]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule("constant", 4, 0, 0.1), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]),
        (Schedule("linear", 0, 4, 0.2), [1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]),
        (Schedule("cosine", 2, 6, 0.0), [0.5, 1.0, 1.0, 0.8535534, 0.5, 0.1464466, 0.0]),
        (Schedule("linear", 1, 6, 0.0, 4), [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]),
    ],
)
def test_schedules(schedule, expected):
    assert [schedule.scale(step) for step in range(7)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("cosin", 0, 5, 0.1), "schedule=cosin"), (("linear", 5, 5, 0.1), "horizon_steps")],
)
def test_an_impossible_schedule_names_the_key(arguments, message):
    with pytest.raises(UserError, match=message):
        Schedule(*arguments)


def test_an_unknown_optimizer_names_the_key():
    spec = OptimizerSpec("adam", 1e-3, 1e-3, 0.0, (0.9, 0.95), 1e-8, 0.95)
    with pytest.raises(UserError, match="optimizer=adam"):
        Optimizers(named_parameters().items(), spec, CONSTANT)
