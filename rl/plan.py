"""What a run is going to do, in words and figures, before anything starts. Loads no torch."""

from __future__ import annotations

import math

from polymath.envs import registry
from polymath.envs.sandbox import BACKENDS
from polymath.envs.types import DomainSpec
from polymath.errors import UserError
from polymath.rl.curriculum import MOST_HELD_OUT, Kind, kinds
from polymath.rl.schema import SupervisedConfig, TrainConfig


def check(config: TrainConfig | SupervisedConfig) -> None:
    """Raise ``UserError`` for a number with which a run would do nothing, hang or fail later."""
    if isinstance(config, SupervisedConfig):
        data = config.demonstrations
        _at_least("steps", config.steps, 1)
        _at_least("rows_per_step", config.rows_per_step, 1)
        _at_least("log_every", config.log_every, 1)
        _at_least("demonstrations.episodes", data.episodes, 1)
        _at_least("demonstrations.parallel", data.parallel, 1)
        if config.soften_steps:
            _at_least("demonstrations.imperfect_episodes", data.imperfect_episodes, 1)
        return
    _at_least("steps", config.steps, 1)
    _at_least("groups_per_step", config.groups_per_step, 1)
    _at_least("group_size", config.group_size, 2)  # one alone has no baseline
    _at_least("staleness", config.staleness, 0)
    _at_least("engine.count", config.engine.count, 1)
    _at_least("rollout.workers", config.rollout.workers, 1)
    _at_least("rollout.concurrency", config.rollout.concurrency, 1)
    _at_least("rollout.retries", config.rollout.retries, 0)
    _at_least("rollout.max_turn_tokens", config.rollout.max_turn_tokens, 1)
    _at_least("checkpoint.every", config.checkpoint.every, 0)
    _at_least("checkpoint.keep", config.checkpoint.keep, 1)
    _one_of("resume", config.resume, ("never", "auto"))
    _one_of("rollout.truncated", config.rollout.truncated, ("floor", "drop"))
    _one_of("engine.kind", config.engine.kind, ("vllm",))
    _one_of("sandbox.backend", config.sandbox.backend, ("auto", *BACKENDS))
    _within("rollout.temperature", config.rollout.temperature, 0.0, 100.0)
    _within("rollout.top_p", config.rollout.top_p, 0.0, 1.0)
    _within("learner.learning_rate", config.learner.learning_rate, 0.0, 10.0)
    for domain, share in config.mixture.domains.items():
        if not 0 <= share.weight < math.inf:
            raise UserError(
                f"mixture.domains.{domain}.weight={share.weight}: it must be a finite number, at least 0"
            )
    seeds = config.evaluation.seeds_per_level
    _at_least("evaluation.seeds_per_level", seeds, 0)
    if seeds > MOST_HELD_OUT:
        raise UserError(f"evaluation.seeds_per_level={seeds}: it can be at most {MOST_HELD_OUT}")
    tokens, most = config.rollout.max_episode_tokens, config.engine.max_model_len
    if tokens > most:
        raise UserError(
            f"rollout.max_episode_tokens={tokens}: it can be at most engine.max_model_len={most}"
        )


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{key}={value}: it must be at least {least}")


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{key}={value}: it can be {', '.join(choices)}")


def _within(key: str, value: float, above: float, most: float) -> None:
    if not above < value <= most:
        raise UserError(f"{key}={value}: it must be above {above:g} and at most {most:g}")


def describe(config: TrainConfig | SupervisedConfig) -> str:
    """A few lines for ``--dry-run``; raises ``UserError`` where the run could not start."""
    check(config)
    specs = {domain: registry.get(domain).spec for domain in config.mixture.domains}
    mixed = kinds(config.mixture, specs)
    lines = [_mixture_line(mixed, specs)]
    if isinstance(config, SupervisedConfig):
        demonstrations = config.demonstrations
        lines += [
            f"data       {demonstrations.episodes} oracle episodes, then "
            f"{demonstrations.imperfect_episodes} of which {demonstrations.imperfect:.0%} are imperfect",
            f"steps      {config.steps} + {config.soften_steps}, {config.rows_per_step} episodes each",
        ]
    else:
        lines += _training_lines(config, mixed)
    lines.append(
        f"learner    {config.learner.kind}: {config.learner.workers} ranks on {config.learner.device}"
    )
    lines.append(f"run        {config.run.folder}/{config.run.name}")
    return "\n".join(lines)


def _mixture_line(mixed: list[Kind], specs: dict[str, DomainSpec]) -> str:
    families = sorted({spec.family for spec in specs.values()})
    levels = len({(kind.domain, kind.level) for kind in mixed})
    return f"tasks      {len(specs)} domains at {levels} levels in {', '.join(families)}"


def _training_lines(config: TrainConfig, mixed: list[Kind]) -> list[str]:
    episodes = config.groups_per_step * config.group_size
    levels = len({(kind.domain, kind.level) for kind in mixed})
    modes = 2 if config.evaluation.greedy else 1
    held_out = levels * config.evaluation.seeds_per_level
    mode = "on-policy" if config.staleness == 0 else f"at most {config.staleness} steps stale"
    return [
        f"steps      {config.steps}, each on {config.groups_per_step} groups x {config.group_size} "
        f"episodes = {episodes} ({mode}); {config.steps * episodes} episodes in all",
        f"held out   {held_out} tasks x {modes} modes, before and after",
        f"rollout    {config.engine.count} x {config.engine.kind} engine, "
        f"{config.rollout.workers} workers, at most {config.rollout.max_episode_tokens} tokens an episode",
    ]
