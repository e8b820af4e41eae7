"""The controller's own bookkeeping, with scripted parts around it (they hold no model)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.rl.scripted_run import SAMPLING, ScriptedWorker, scored
from tests.rl.test_curriculum import SPECS

from polymath.rl.advantages.grpo import Grpo
from polymath.rl.checkpoints import Checkpoints
from polymath.rl.collector import Collector
from polymath.rl.controller import Components, Controller, NoSignalError, NoVerdictError
from polymath.rl.credit import Credit
from polymath.rl.curriculum import Curriculum
from polymath.rl.evaluation import EvaluationResult
from polymath.rl.learner.base import StepResult
from polymath.rl.ledger import Ledger, LedgerError
from polymath.rl.schema import DomainShare, MixtureConfig
from polymath.rl.weight_sync import SyncReport
from polymath.rollout.types import Outcome, OutcomeKind


@dataclass
class ScriptedLearner:
    """Counts steps; ``loses`` tokens of the first episode of each step."""

    steps: int = 0
    loses: int = 0
    trained: list[str] = field(default_factory=list)

    async def step(self, rows: Sequence[Any]) -> StepResult:
        self.steps += 1
        names = [str(ref).removeprefix("ref-") for group in rows for ref, _ in group]
        self.trained += names
        counts = dict.fromkeys(names, 10)
        counts[names[0]] -= self.loses
        return StepResult(self.steps, counts, {})

    async def save(self, folder: str) -> None:
        Path(folder).mkdir()
        (Path(folder) / "steps").write_text(str(self.steps))

    async def load(self, folder: str) -> int:
        self.steps = int((Path(folder) / "steps").read_text())
        return self.steps


@dataclass
class Recorder:
    """Stands where weight sync, evaluator and observer stand, and remembers the calls."""

    published: list[int] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    logged: list[int] = field(default_factory=list)
    on_step: Any = None
    on_evaluation: Any = None

    async def publish(self, version: int) -> SyncReport:
        self.published.append(version)
        return SyncReport(version, 0.0, 0, 0.0)

    async def run(self, step: int, split: str) -> EvaluationResult:
        self.splits.append(split)
        if self.on_evaluation:
            await self.on_evaluation(split)
        return EvaluationResult((), 0)

    def phase(self, name: str) -> None: ...

    def warn(self, line: str) -> None:
        self.warnings.append(line)

    def evaluated(self, step: int, split: str, result: EvaluationResult) -> None: ...

    async def step(self, step: int, *parts: Any) -> None:
        self.logged.append(step)
        if self.on_step:
            self.on_step(step)


@dataclass
class Stage:
    folder: Path
    learner: ScriptedLearner = field(default_factory=ScriptedLearner)
    recorder: Recorder = field(default_factory=Recorder)
    worker: ScriptedWorker = field(default_factory=ScriptedWorker)
    ledger: Ledger = field(default_factory=Ledger)

    def controller(self, steps: int, every: int = 0) -> Controller:
        curriculum = Curriculum(MixtureConfig(domains={"a/one": DomainShare()}), SPECS, seed=0)
        collector = Collector(
            [self.worker], curriculum, groups_per_step=2, group_size=2, staleness=1,
            sampling=SAMPLING, deadline=5.0,
        )  # fmt: skip
        recorder: Any = self.recorder
        learner: Any = self.learner
        parts = Components(
            collector=collector,
            credit=Credit(Grpo(), SPECS, truncated="floor", staleness=1000),
            learner=learner,
            ledger=self.ledger,
            sync=recorder,
            curriculum=curriculum,
            evaluator=recorder,
            checkpoints=Checkpoints(self.folder, learner, every=every, keep=2),
            observer=recorder,
            workers=[self.worker],
        )
        return Controller(parts, steps=steps, evaluate_every=2)


def test_a_run_tells_each_step_once_and_publishes_what_it_trained(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert asyncio.run(stage.controller(steps=3).run())
    assert stage.recorder.published == [0, 1, 2, 3]
    assert stage.recorder.logged == [1, 2, 3]
    assert stage.recorder.splits == ["before", "during", "after"]


def test_every_sampled_token_is_accounted_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    asyncio.run(stage.controller(steps=3).run())
    totals = stage.ledger.totals()
    assert totals.sampled == 3 * 2 * 2 * 10
    assert (totals.consumed, totals.pending) == (totals.sampled, 0)


def test_a_token_that_the_learner_lost_stops_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, learner=ScriptedLearner(loses=1))
    with pytest.raises(LedgerError, match="g0-0: 1 tokens are pending"):
        asyncio.run(stage.controller(steps=3).run())


def test_an_interrupted_run_goes_on_to_the_same_end_and_trains_nothing_twice(
    tmp_path: Path,
) -> None:
    first = Stage(tmp_path)
    controller = first.controller(steps=5)
    first.recorder.on_step = lambda step: controller.interrupt() if step == 2 else None
    assert not asyncio.run(controller.run())
    assert "after" not in first.recorder.splits

    second = Stage(tmp_path)
    assert asyncio.run(second.controller(steps=5).run())
    assert second.recorder.published == [2, 3, 4, 5]
    trained = first.learner.trained + second.learner.trained
    assert sorted(trained) == sorted(f"g{g}-{e}" for g in range(10) for e in range(2))
    assert second.ledger.totals().consumed == 5 * 2 * 2 * 10


def test_a_run_without_any_spread_says_so_instead_of_turning_for_ever(tmp_path: Path) -> None:
    stage = Stage(tmp_path, worker=ScriptedWorker(rewards=(0.0, 0.0)))
    with pytest.raises(NoSignalError, match="20 batches in a row"):
        asyncio.run(stage.controller(steps=1).run())
    assert len(stage.recorder.warnings) == 20


def test_old_checkpoints_give_way_and_the_last_step_is_saved(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    asyncio.run(stage.controller(steps=5, every=2).run())
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["step-000004", "step-000005"]


def test_a_checkpoint_without_its_last_file_does_not_count(tmp_path: Path) -> None:
    asyncio.run(Stage(tmp_path).controller(steps=4, every=2).run())
    (tmp_path / "step-000004" / "controller.json").unlink()
    again = Stage(tmp_path)
    asyncio.run(again.controller(steps=4).run())
    assert again.recorder.published[0] == 2


def test_the_last_step_is_evaluated_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    asyncio.run(stage.controller(steps=4).run())
    assert stage.recorder.splits == ["before", "during", "after"]


@pytest.mark.parametrize("when", ["at the last step", "while it is evaluated"])
def test_a_run_interrupted_before_its_last_evaluation_is_not_done(
    tmp_path: Path, when: str
) -> None:
    stage = Stage(tmp_path)
    controller = stage.controller(steps=3)

    async def interrupt(split: str) -> None:
        if split == "after":
            controller.interrupt()
            await asyncio.Event().wait()

    if when == "at the last step":
        stage.recorder.on_step = lambda step: controller.interrupt() if step == 3 else None
    else:
        stage.recorder.on_evaluation = interrupt
    assert not asyncio.run(controller.run())

    again = Stage(tmp_path)
    assert asyncio.run(again.controller(steps=3).run())
    assert again.recorder.splits == ["after"]
    assert not again.learner.trained


def test_a_run_interrupted_before_its_first_step_leaves_nothing_to_go_on_from(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    controller = stage.controller(steps=3)
    controller.interrupt()
    assert not asyncio.run(controller.run())
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_failed_as_a_whole_says_why_at_once(tmp_path: Path) -> None:
    dead = Outcome(OutcomeKind.INFRASTRUCTURE_FAILED, why="engine: engine-0 died")
    stage = Stage(tmp_path, worker=ScriptedWorker(outcome=dead))
    with pytest.raises(NoVerdictError, match="all 4 episodes.*engine-0 died"):
        asyncio.run(stage.controller(steps=1).run())


def test_a_step_is_saved_only_once_it_is_logged(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    saved: dict[int, list[str]] = {}

    def look(step: int) -> None:
        saved[step] = sorted(path.name for path in tmp_path.iterdir())

    stage.recorder.on_step = look
    asyncio.run(stage.controller(steps=2, every=1).run())
    assert saved == {1: [], 2: ["step-000001"]}


def test_the_curriculum_hears_of_tasks_that_all_or_none_solve(tmp_path: Path) -> None:
    stage = Stage(tmp_path, worker=ScriptedWorker(outcome=scored(1.0)))
    controller = stage.controller(steps=1)
    with pytest.raises(NoSignalError):
        asyncio.run(controller.run())
    assert set(controller._parts.curriculum.state["means"].values()) == {1.0}


def test_a_run_that_fails_leaves_nothing_playing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    def fail(step: int) -> None:
        raise RuntimeError("disk")

    async def run() -> None:
        stage.worker.holds_from = 2  # the first batch comes, the next one hangs
        stage.recorder.on_step = fail
        with pytest.raises(RuntimeError, match="disk"):
            await stage.controller(steps=3).run()
        assert stage.worker.given_up == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
