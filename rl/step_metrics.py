"""What a step is remembered by: pure functions from its parts to named metrics."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from polymath.rl.collector import Batch
from polymath.rl.credit import Credited
from polymath.rl.ledger import LedgerTotals
from polymath.rollout.worker import EpisodeSummary

Metrics = dict[str, float]
Scored = tuple[EpisodeSummary, float]


def reward_metrics(credited: Credited) -> Metrics:
    """Rewards of all scored episodes, by family, domain and level; errors over groups."""
    rewards = credited.rewards
    if not rewards:
        return {}
    metrics: Metrics = {}
    _mean_with_stderr(metrics, "reward/mean", "reward/stderr", rewards)
    for family, own in _split(rewards, lambda e: e.domain.split("/", 1)[0]).items():
        names = f"reward/family/{family}", f"reward/family_stderr/{family}"
        _mean_with_stderr(metrics, *names, own)
    for domain, own in _split(rewards, lambda e: e.domain).items():
        metrics[f"reward/domain/{domain}"] = _mean(reward for _, reward in own)
    for level, own in _split(rewards, lambda e: f"{e.domain}/{e.level}").items():
        metrics[f"reward/level/{level}"] = _mean(reward for _, reward in own)
    spreads = [
        statistics.pstdev([reward for _, reward in own])
        for own in _split(rewards, lambda e: e.group).values()
    ]
    metrics["reward/group_std"] = _mean(spreads)
    return metrics


def episode_metrics(batch: Batch, credited: Credited) -> Metrics:
    """How episodes ended and how long they were."""
    episodes = [episode for group in batch.groups for episode in group.episodes]
    metrics: Metrics = {
        "episode/turns": _mean(episode.turns for episode in episodes),
        "episode/tokens": _mean(episode.sampled_tokens for episode in episodes),
        "episode/seconds": _mean(episode.seconds for episode in episodes),
        "episode/malformed_calls": sum(episode.refused for episode in episodes),
        "group/count": credited.groups,
        "group/zero_spread": credited.zero_spread_groups / credited.groups,
        "advantage/mean_abs": _token_mean_abs_advantage(credited),
    }
    verdicts = [1e3 * e.phases["verifier"] for e in episodes if "verifier" in e.phases]
    if verdicts:
        metrics["verifier/ms"], metrics["verifier/ms_max"] = _mean(verdicts), max(verdicts)
    for episode in episodes:
        kind, why = episode.outcome.kind, episode.outcome.why
        _count(metrics, f"outcome/{kind}")
        if why:
            _count(metrics, f"outcome_reason/{kind}/{_word(why)}")
    return metrics


def token_metrics(batch: Batch, credited: Credited, step: int, seconds: float) -> Metrics:
    """Tokens, their age at the step that trained them, and speed over the whole step."""
    trained = sum(item.episode.sampled_tokens for item in credited.trains)
    ages = [
        (step - 1 - item.episode.mean_version, item.episode.sampled_tokens)
        for item in credited.trains
    ]
    oldest = [step - 1 - item.episode.min_version for item in credited.trains]
    return {
        "tokens/sampled": batch.sampled_tokens,
        "tokens/trained": trained,
        "throughput/completion": batch.sampled_tokens / seconds,
        "throughput/trained": trained / seconds,
        "staleness/mean": sum(age * n for age, n in ages) / max(1, trained),
        "staleness/max": max(oldest, default=0),
    }


def phase_metrics(phases: Mapping[str, float], seconds: float) -> Metrics:
    """Seconds of the step by phase; what the learner did not work is its idle share."""
    metrics: Metrics = {f"seconds/phase/{name}": value for name, value in phases.items()}
    metrics["seconds/step"] = seconds
    metrics["idle/learner"] = _share(1.0 - phases.get("learner", 0.0) / seconds)
    return metrics


def ledger_metrics(totals: LedgerTotals) -> Metrics:
    """Tokens since the start of the run, by fate."""
    return {
        "ledger/sampled": totals.sampled,
        "ledger/pending": totals.pending,
        "ledger/consumed": totals.consumed,
        "ledger/not_for_training": totals.not_for_training,
        **{f"ledger/dropped/{reason}": count for reason, count in totals.dropped.items()},
    }


def _mean_with_stderr(metrics: Metrics, mean: str, stderr: str, rewards: Sequence[Scored]) -> None:
    metrics[mean] = _mean(reward for _, reward in rewards)
    groups = [_mean(r for _, r in own) for own in _split(rewards, lambda e: e.group).values()]
    if len(groups) > 1:
        metrics[stderr] = statistics.stdev(groups) / len(groups) ** 0.5


def _split(
    rewards: Sequence[Scored], key: Callable[[EpisodeSummary], str]
) -> dict[str, list[Scored]]:
    found: dict[str, list[Scored]] = {}
    for episode, reward in rewards:
        found.setdefault(key(episode), []).append((episode, reward))
    return found


def _token_mean_abs_advantage(credited: Credited) -> float:
    weights = [(abs(item.advantage), item.episode.sampled_tokens) for item in credited.trains]
    return sum(value * n for value, n in weights) / max(1, sum(n for _, n in weights))


def _count(metrics: Metrics, name: str) -> None:
    metrics[name] = metrics.get(name, 0.0) + 1


def _word(why: str) -> str:
    """A reason's first word, which is its type; the rest is for people."""
    return why.split(":", 1)[0].split("(", 1)[0].strip().replace(" ", "_")[:40] or "unknown"


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
