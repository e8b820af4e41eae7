"""Turns what the controller does into metrics, evaluations, example episodes and the panel.

The controller calls it at every change; it alone feeds the tracker, so there is one writer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from polymath.rl.collector import Batch
from polymath.rl.credit import Credited
from polymath.rl.evaluation import EvaluationResult, mean_over_domains
from polymath.rl.learner.base import StepResult
from polymath.rl.ledger import Ledger
from polymath.rl.phases import PhaseClock
from polymath.rl.processes import memory_metrics
from polymath.rl.step_metrics import (
    Metrics,
    episode_metrics,
    ledger_metrics,
    phase_metrics,
    reward_metrics,
    token_metrics,
)
from polymath.rl.tracking.panel import Panel, PanelState
from polymath.rl.tracking.tracker import Tracker
from polymath.rl.weight_sync import SyncReport
from polymath.rollout.engine.base import Engine, EngineStats
from polymath.rollout.renderer.base import Renderer
from polymath.rollout.types import Episode
from polymath.rollout.worker import EpisodeSummary

T = TypeVar("T")

_ANSWER_SECONDS = 10.0
"""What does not answer this soon is left out of what is logged of the step."""


class Observer:
    """Sees what passes, asks the engines for their counters, and decides nothing."""

    def __init__(
        self,
        tracker: Tracker,
        panel: Panel,
        renderer: Renderer,
        *,
        run: str,
        steps: int,
    ) -> None:
        self._tracker = tracker
        self._panel = panel
        self._renderer = renderer
        self._ledger = Ledger()
        self._engines: list[Engine] = []
        self._run = run
        self._steps = steps
        self._phase = "start"
        self._engine_before: EngineStats | None = None
        self._show()

    def watch(self, engines: Sequence[Engine], ledger: Ledger) -> None:
        """What to ask for counters once it runs."""
        self._engines, self._ledger = list(engines), ledger

    def phase(self, name: str) -> None:
        """The controller entered a phase."""
        self._phase = name
        self._show()

    def warn(self, line: str) -> None:
        """Something that a person should know."""
        self._tracker.warnings.append(line)
        self._show()

    async def step(
        self,
        step: int,
        batch: Batch,
        credited: Credited,
        result: StepResult,
        report: SyncReport,
        clock: PhaseClock,
    ) -> None:
        """Log one finished step."""
        engine = await self._engine_stats()
        phases, seconds = clock.take()
        metrics: Metrics = {
            **reward_metrics(credited),
            **episode_metrics(batch, credited),
            **token_metrics(batch, credited, step, seconds),
            **phase_metrics(phases, seconds),
            **ledger_metrics(self._ledger.totals()),
            **result.metrics,
            **memory_metrics(),
            **self._engine_metrics(engine, seconds),
            "sync/bytes": report.bytes,
            "sync/canary_gap": report.canary_difference,
        }
        self._tracker.log(step, metrics)
        await self._examples(step, credited)
        self._show()

    def evaluated(self, step: int, split: str, result: EvaluationResult) -> None:
        """Log a held-out evaluation, if there was one."""
        if not result.records:
            return
        self._tracker.evaluations(result.records)
        if result.failed:
            self.warn(f"{result.failed} held-out episodes had no sound verdict at step {step}")
        metrics: Metrics = {}
        for mode in sorted({record.mode for record in result.records}):
            mean, stderr = mean_over_domains(result.records, mode)
            metrics[f"heldout/mean/{mode}"], metrics[f"heldout/stderr/{mode}"] = mean, stderr
            for domain in sorted({r.domain for r in result.records if r.mode == mode}):
                own = [r for r in result.records if r.mode == mode and r.domain == domain]
                metrics[f"heldout/domain/{mode}/{domain}"] = mean_over_domains(own, mode)[0]
        self._tracker.log(step, metrics)
        self._show()

    async def _engine_stats(self) -> list[EngineStats]:
        answers = await _answers(engine.stats() for engine in self._engines)
        return [answer for answer in answers if answer is not None]

    def _engine_metrics(self, stats: Sequence[EngineStats], seconds: float) -> Metrics:
        if len(stats) != len(self._engines):
            self.warn("an engine did not report its counters")
            return {}
        total = EngineStats(
            version=stats[0].version,
            running=sum(s.running for s in stats),
            prompt_tokens=sum(s.prompt_tokens for s in stats),
            cached_tokens=sum(s.cached_tokens for s in stats),
            sampled_tokens=sum(s.sampled_tokens for s in stats),
            busy_seconds=sum(s.busy_seconds for s in stats) / len(stats),
            memory_bytes=sum(s.memory_bytes for s in stats),
        )
        before, self._engine_before = self._engine_before, total
        metrics: Metrics = {"queue/episodes_running": total.running}
        if before is None:
            return metrics
        prompt = total.prompt_tokens - before.prompt_tokens
        cached = total.cached_tokens - before.cached_tokens
        busy = (total.busy_seconds - before.busy_seconds) / seconds
        return metrics | {
            "cache/hit_tokens": cached,
            "cache/hit_share": cached / prompt if prompt else 0.0,
            "idle/engine": min(1.0, max(0.0, 1.0 - busy)),
        }

    async def _examples(self, step: int, credited: Credited) -> None:
        """A table of a few episodes, one for each of the batch's domains in turn."""
        count = self._tracker.episodes_due(step)
        chosen: dict[str, tuple[EpisodeSummary, float]] = {}
        for episode, reward in credited.rewards:
            chosen.setdefault(episode.domain, (episode, reward))
        picked = list(chosen.values())[:count]
        if not picked:
            return
        episodes: list[Episode | None] = await _answers(summary.ref for summary, _ in picked)
        rows = [
            self._row(episode, reward)
            for episode, (_, reward) in zip(episodes, picked, strict=True)
            if episode is not None
        ]
        self._tracker.table(step, "episodes", rows)

    def _row(self, episode: Episode, reward: float) -> dict[str, Any]:
        tokens = [token for segment in episode.segments for token in segment.tokens().tolist()]
        verdict = episode.verdict
        return {
            "episode": episode.id,
            "domain": episode.domain,
            "level": episode.level,
            "effort": str(episode.effort),
            "outcome": str(episode.outcome.kind),
            "why": episode.outcome.why,
            "reward": reward,
            "turns": sum(len(segment.turns) for segment in episode.segments),
            "tokens": episode.sampled_tokens,
            "transcript": self._renderer.decode(tokens),
            "verdict": json.dumps(
                {"status": str(verdict.status), "components": dict(verdict.components)}
                if verdict
                else None
            ),
        }

    def _show(self) -> None:
        tracker = self._tracker
        self._panel.update(
            PanelState.of(
                tracker.history,
                run=self._run,
                steps=self._steps,
                phase=self._phase,
                warnings=tracker.warnings[-2:],
            )
        )


async def _answers(asked: Iterable[Awaitable[T]]) -> list[T | None]:
    """Each answer, or None where it failed or came too late: what is only shown ends no run."""
    calls = [asyncio.ensure_future(one) for one in asked]
    _, late = await asyncio.wait(calls, timeout=_ANSWER_SECONDS)
    for call in late:
        call.cancel()
    return [None if call in late or call.exception() else call.result() for call in calls]
