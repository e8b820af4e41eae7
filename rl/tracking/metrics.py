"""The table of metrics: every name that can be logged, its unit and what it means.

A name may carry labels (``reward/family/<family>``). ``docs/metrics.md`` is this table; rewrite
it with ``python -m polymath.rl.tracking.metrics > docs/metrics.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real

from polymath.errors import PolymathError
from polymath.rollout.types import OutcomeKind


class TrackingError(PolymathError):
    """Something could not be tracked; the message says what, where and what to do."""


class UndeclaredMetric(TrackingError):
    """A name that is not in the table."""


class NonFiniteMetric(TrackingError):
    """A value that is not a finite number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. ``name`` may hold labels from ``LABELS`` in angle brackets."""

    name: str
    unit: str
    meaning: str


PHASES = ("rollout_wait", "credit", "learner", "sync", "tracking", "checkpoint", "evaluation")
"""The parts of a step, in order."""

MODES = ("sampled", "greedy")
"""How held-out tasks are attempted: at the training temperature, or at temperature 0."""

_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

LABELS: Mapping[str, tuple[str, str]] = {
    "family": (_WORD, "a family of domains"),
    "domain": (f"{_WORD}/{_WORD}", "a domain's id, `family/name`"),
    "level": (r"\d+", "a level's number within its domain"),
    "outcome": ("|".join(OutcomeKind), ", ".join(OutcomeKind)),
    "reason": (r"\S+", "why, in one word"),
    "phase": ("|".join(PHASES), ", ".join(PHASES)),
    "term": (_WORD, "a term of the loss"),
    "process": (_WORD, "a group of processes: driver, engine, learner, rollout, verifier, ..."),
    "mode": ("|".join(MODES), "`sampled` (training temperature) or `greedy` (temperature 0)"),
}
"""Labels: pattern of their values, and what they stand for."""

TABLE: tuple[Metric, ...] = (
    # reward
    Metric("reward/mean", "reward", "Mean reward of the step's scored episodes."),
    Metric("reward/stderr", "reward", "Standard error of that mean over the step's groups."),
    Metric("reward/family/<family>", "reward", "Mean reward within a family."),
    Metric("reward/family_stderr/<family>", "reward", "Its standard error over groups."),
    Metric("reward/domain/<domain>", "reward", "Mean reward within a domain."),
    Metric("reward/level/<domain>/<level>", "reward", "Mean reward at one level of a domain."),
    Metric("reward/group_std", "reward", "Standard deviation within a group, mean over groups."),
    # held-out evaluation
    Metric("heldout/mean/<mode>", "reward", "Held-out reward, mean over domains."),
    Metric("heldout/stderr/<mode>", "reward", "Its standard error."),
    Metric("heldout/domain/<mode>/<domain>", "reward", "Held-out reward of a domain."),
    Metric("heldout/gain/<mode>", "reward", "Held-out reward at the end minus at the start."),
    Metric("heldout/gain_stderr/<mode>", "reward", "Its standard error."),
    # episodes and groups
    Metric("outcome/<outcome>", "episodes", "Episodes of the step that ended this way."),
    Metric("outcome_reason/<outcome>/<reason>", "episodes", "The same, by reason."),
    Metric("episode/turns", "turns", "Turns an episode, mean."),
    Metric("episode/tokens", "tokens", "Sampled tokens an episode, mean."),
    Metric("episode/seconds", "s", "Seconds an episode, mean."),
    Metric("episode/malformed_calls", "calls", "Tool calls that could not be parsed."),
    Metric("group/count", "groups", "Groups in the step's batch."),
    Metric("group/zero_spread", "share", "Share of groups whose episodes all scored alike."),
    Metric("advantage/mean_abs", "reward", "Mean of |advantage| over loss tokens."),
    # tokens and speed
    Metric("tokens/sampled", "tokens", "Tokens sampled for training during the step."),
    Metric("tokens/trained", "tokens", "Tokens that carried loss in the step."),
    Metric("throughput/completion", "tokens/s", "Sampled tokens per second of the step."),
    Metric("throughput/trained", "tokens/s", "Loss tokens per second of the step."),
    Metric("staleness/mean", "steps", "Age of the weights that sampled the step's tokens, mean."),
    Metric("staleness/max", "steps", "Age of the oldest such weights."),
    Metric("cache/hit_tokens", "tokens", "Prompt tokens that the prefix cache served."),
    Metric("cache/hit_share", "share", "Share of prompt tokens that the prefix cache served."),
    # waiting and working
    Metric("seconds/step", "s", "Seconds from the end of the last step to the end of this one."),
    Metric("seconds/phase/<phase>", "s", "Seconds of the step spent in one phase."),
    Metric("idle/engine", "share", "Share of the step in which no engine was sampling."),
    Metric("idle/learner", "share", "Share of the step in which the learner had no work."),
    Metric("queue/episodes_running", "episodes", "Episodes under way at the end of the step."),
    Metric("sandbox/live", "sandboxes", "Sandboxes in existence at the end of the step."),
    Metric("verifier/ms", "ms", "Milliseconds a verdict, mean."),
    Metric("verifier/ms_max", "ms", "Milliseconds of the slowest verdict."),
    Metric("sync/bytes", "bytes", "Size of the weight update."),
    Metric("sync/canary_gap", "nats", "Largest canary log-probability gap, engine to learner."),
    Metric("memory/rss/<process>", "MiB", "Resident memory of a group of processes."),
    Metric("memory/total", "MiB", "Resident memory of the whole run."),
    Metric("memory/available", "MiB", "Memory that the machine still has."),
    # learning
    Metric("loss/total", "nats", "The loss that was descended."),
    Metric("loss/term/<term>", "nats", "One term of it, as it enters the sum."),
    Metric("policy/clip_fraction", "share", "Share of loss tokens whose ratio was clipped."),
    Metric("policy/clip_fraction_low", "share", "The same, at the lower bound."),
    Metric("policy/clip_fraction_high", "share", "The same, at the upper bound."),
    Metric("policy/entropy", "nats", "Entropy of the policy a sampled token, mean."),
    Metric("policy/mismatch_kl", "nats", "KL a token from the engine's to the learner's policy."),
    Metric("policy/ratio_max", "ratio", "Largest importance ratio of a loss token."),
    Metric("policy/reference_kl", "nats", "KL a token from the policy to the reference."),
    Metric("optimizer/grad_norm", "norm", "Gradient norm before clipping."),
    Metric("optimizer/learning_rate", "rate", "Learning rate of the step."),
    Metric("model/indexer_kl", "nats", "KL from the attention's to the indexer's distribution."),
    Metric("model/expert_load", "ratio", "Load of the busiest expert over the mean load."),
    # the ledger, since the start of the run
    Metric("ledger/sampled", "tokens", "All tokens sampled since the run began."),
    Metric("ledger/pending", "tokens", "Of these, not yet decided."),
    Metric("ledger/consumed", "tokens", "Of these, trained in some step."),
    Metric("ledger/not_for_training", "tokens", "Of these, evaluation and serving."),
    Metric("ledger/dropped/<reason>", "tokens", "Of these, dropped for a reason."),
)

_LABEL = re.compile(r"<(\w+)>")


def _compile(pattern: str) -> re.Pattern[str]:
    parts = _LABEL.split(pattern)
    regex = "".join(
        f"({LABELS[part][0]})" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
    return re.compile(regex)


_PATTERNS = tuple((_compile(metric.name), metric) for metric in TABLE)


@lru_cache(maxsize=4096)
def find(name: str) -> Metric | None:
    """The row that declares ``name``, or None."""
    return next((metric for regex, metric in _PATTERNS if regex.fullmatch(name)), None)


@lru_cache(maxsize=4096)
def labels(pattern: str, name: str) -> tuple[str, ...] | None:
    """The values of the labels if ``name`` fits ``pattern``, else None."""
    match = _compile(pattern).fullmatch(name)
    return match.groups() if match else None


def checked(values: Mapping[str, float], where: str) -> dict[str, float]:
    """``values`` as plain floats. ``where`` is for the message, such as ``step 3``.

    Raises ``UndeclaredMetric`` and ``NonFiniteMetric``.
    """
    plain: dict[str, float] = {}
    for name, value in values.items():
        if find(name) is None:
            raise UndeclaredMetric(
                f"{where}: metric {name!r} is not declared; add it to TABLE in "
                "polymath/rl/tracking/metrics.py"
            )
        if not _finite(value):
            raise NonFiniteMetric(f"{where}: metric {name!r} is {value!r}, not a finite number")
        plain[name] = float(value)
    return plain


def _finite(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) and math.isfinite(value)


def markdown(table: Iterable[Metric] = TABLE) -> str:
    """The page ``docs/metrics.md``."""
    lines = [
        "# Metrics",
        "",
        "Every metric of a run, in `metrics.jsonl` and in Weights & Biases alike. Logging any other",
        "name, or a value that is not finite, is an error. The clock is the optimizer step. A metric",
        "is left out of a step that gave it nothing to measure (no episode of that domain, say).",
        "",
        "Generated by `python -m polymath.rl.tracking.metrics > docs/metrics.md`.",
        "",
        "| name | unit | meaning |",
        "|---|---|---|",
        *(f"| `{metric.name}` | {metric.unit} | {_cell(metric.meaning)} |" for metric in table),
        "",
        "| label | stands for |",
        "|---|---|",
        *(f"| `<{name}>` | {meaning} |" for name, (_, meaning) in LABELS.items()),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
