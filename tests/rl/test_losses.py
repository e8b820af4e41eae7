"""Losses against gradients that are known exactly."""

import math

import pytest
import torch

from polymath.rl.losses.base import Aggregation, Denominator, Denominators, LossError, LossTokens
from polymath.rl.losses.cross_entropy import CrossEntropy
from polymath.rl.losses.kl import k2, k3
from polymath.rl.losses.ppo_clip import PpoClip
from polymath.rl.losses.registry import build_loss
from polymath.rl.losses.schema import AlgorithmConfig

P = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.3, 0.2, 0.15, 0.25], dtype=torch.float64)


def tokens(logprobs, behaviour=None, advantages=None, sequence_tokens=None, reference=None):
    logprobs = torch.as_tensor(logprobs, dtype=torch.float64)
    given = lambda value, default: (  # noqa: E731
        torch.full_like(logprobs, default)
        if value is None
        else torch.tensor(value, dtype=torch.float64)
    )
    return LossTokens(
        logprobs=logprobs,
        entropy=torch.zeros_like(logprobs),
        behaviour=logprobs.detach() if behaviour is None else given(behaviour, 0),
        advantages=given(advantages, 1.0),
        sequence_tokens=given(sequence_tokens, len(logprobs)),
        reference=None if reference is None else given(reference, 0),
    )


def total(result, denominators):
    return sum(term.sum / denominators.of(term.denominator) for term in result.terms)


# What a KL estimator descends ---------------------------------------------------------------------


def expected_gradient(estimator):
    """E over samples of P of the estimator's gradient in P's logits."""
    logits = P.log().clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    (gradient,) = torch.autograd.grad((P * estimator(logprobs, Q.log())).sum(), logits)
    return gradient


def kl_gradient(direction):
    logits = P.log().clone().requires_grad_()
    p = logits.softmax(-1)
    value = (
        (p * (p.log() - Q.log())).sum()
        if direction == "reverse"
        else (Q * (Q.log() - p.log())).sum()
    )
    return torch.autograd.grad(value, logits)[0]


def test_k1_as_a_loss_has_no_gradient():
    assert expected_gradient(lambda p, q: p - q).abs().max() < 1e-15


def test_k2_descends_the_reverse_kl():
    torch.testing.assert_close(expected_gradient(k2), kl_gradient("reverse"), rtol=0, atol=1e-15)


def test_k3_descends_the_forward_kl_and_not_the_reverse():
    torch.testing.assert_close(expected_gradient(k3), kl_gradient("forward"), rtol=0, atol=1e-15)
    assert (expected_gradient(k3) - kl_gradient("reverse")).abs().max() > 1e-2


def test_ratio_times_k3_descends_the_reverse_kl_again():
    found = expected_gradient(lambda p, q: (p - p.detach()).exp() * k3(p, q))
    torch.testing.assert_close(found, kl_gradient("reverse"), rtol=0, atol=1e-15)


def test_as_a_value_k3_is_unbiased():
    assert (P * k3(P.log(), Q.log())).sum() == pytest.approx(
        float((P * (P / Q).log()).sum()), abs=1e-15
    )


def test_the_kl_penalty_has_the_gradient_of_the_reverse_kl():
    logits = P.log().clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    gradient = torch.zeros_like(P)
    for token, p in enumerate(P):
        picked = tokens(
            logprobs[token : token + 1], advantages=[0.0], reference=[math.log(Q[token])]
        )
        result = PpoClip(0.2, 0.28, kl_coefficient=0.3)(picked)
        gradient += (
            p * torch.autograd.grad(total(result, Denominators(1, 1)), logits, retain_graph=True)[0]
        )
    torch.testing.assert_close(gradient, 0.3 * kl_gradient("reverse"), rtol=0, atol=1e-15)


# How answers of unequal length are weighed ---------------------------------------------------------

ANSWERS = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
LENGTHS = [1, 100, 10]
REWARDS = [0.0, 0.0, 1.0]  # short wrong, long wrong, right


def answer_gradient(aggregation):
    """Minus the expected gradient in the logits of choosing an answer, whose first token decides and
    whose other tokens are certain; every answer counts with its probability."""
    logits = ANSWERS.log().clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    baseline = float((ANSWERS * torch.tensor(REWARDS)).sum())
    denominators = Denominators(tokens=1, sequences=1)
    loss = PpoClip(0.2, 0.28, aggregation=aggregation)
    value = torch.zeros((), dtype=torch.float64)
    for answer, length in enumerate(LENGTHS):
        certain = torch.zeros(length - 1, dtype=torch.float64)
        advantage = [REWARDS[answer] - baseline] * length
        sampled = tokens(
            torch.cat([logprobs[answer : answer + 1], certain]),
            advantages=advantage,
            sequence_tokens=[float(length)] * length,
        )
        value = value + ANSWERS[answer] * total(loss(sampled), denominators)
    return -torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("aggregation", [Aggregation.TOKEN_MEAN, Aggregation.SEQUENCE_SUM])
def test_global_denominators_give_the_true_gradient(aggregation):
    expected = torch.tensor([-0.12, -0.04, 0.16], dtype=torch.float64)
    torch.testing.assert_close(answer_gradient(aggregation), expected, rtol=0, atol=1e-12)


def test_averaging_within_answers_flips_the_sign_for_the_long_wrong_one():
    found = answer_gradient(Aggregation.SEQUENCE_MEAN)
    expected = torch.tensor([-0.057, 0.0205, 0.037], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)


# PPO's clip ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.27, 1.0, -1.27, -1.27),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),
        (0.81, -1.0, 0.81, 0.81),
        (1.5, -1.0, 1.5, 1.5),
    ],
)
def test_the_clip_holds_a_token_only_where_its_advantage_pushes(ratio, advantage, value, slope):
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    sampled = tokens(logprobs, behaviour=[-1.0 - math.log(ratio)], advantages=[advantage])
    (term,) = PpoClip(0.2, 0.28)(sampled).terms
    term.sum.backward()
    assert term.denominator is Denominator.TOKENS
    assert term.sum.item() == pytest.approx(value)
    assert logprobs.grad.item() == pytest.approx(slope)


def test_the_metrics_of_the_clip_are_sums_and_counts():
    behaviour = [-1 - math.log(r) for r in (1.5, 0.5, 0.5, 1.0)]
    sampled = tokens([-1.0] * 4, behaviour=behaviour, advantages=[1.0, -1.0, 1.0, 1.0])
    result = PpoClip(0.2, 0.28)(sampled)
    shares = {n: float(m.sum) / m.count for n, m in result.means.items()}
    assert shares["policy/clip_fraction_high"] == 0.25
    assert shares["policy/clip_fraction_low"] == 0.25
    assert shares["policy/clip_fraction"] == 0.5
    expected = sum(r - 1 - math.log(r) for r in (1.5, 0.5, 0.5, 1.0)) / 4
    assert shares["policy/mismatch_kl"] == pytest.approx(expected)
    assert float(result.maxima["policy/ratio_max"]) == pytest.approx(1.5)


@pytest.mark.parametrize("loss", [PpoClip(0.2, 0.28, 0.1, 0.1), CrossEntropy()])
def test_no_tokens_at_all_are_a_zero_and_not_a_nan(loss):
    none = tokens(torch.zeros(0), behaviour=[], advantages=[], sequence_tokens=[], reference=[])
    assert float(total(loss(none), Denominators(0, 0))) == 0.0


def test_extreme_ratios_stay_finite():
    logprobs = torch.tensor([-1e-6, -500.0], dtype=torch.float64, requires_grad=True)
    sampled = tokens(logprobs, behaviour=[-500.0, -1e-6], advantages=[-1.0, 1.0])
    value = total(PpoClip(0.2, 0.28)(sampled), Denominators(2, 1))
    value.backward()
    assert value.isfinite() and logprobs.grad.isfinite().all()


def test_cross_entropy_is_the_mean_negative_log_probability():
    result = CrossEntropy()(tokens([-1.0, -3.0]))
    assert float(total(result, Denominators(2, 1))) == 2.0


@pytest.mark.parametrize(
    "wrong", [{"loss": "ppo"}, {"aggregation": "mean"}, {"clip_low": 0.0}, {"clip_high": -0.1}]
)
def test_an_impossible_configuration_is_one_clear_error(wrong):
    with pytest.raises(LossError, match=next(iter(wrong))):
        build_loss(AlgorithmConfig(**wrong))
