"""Assembles a run from its configuration and sees it through: `polymath train` and `polymath eval`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from rich.console import Console

from polymath.configs import Composed, unread
from polymath.envs import registry
from polymath.envs.sandbox import select
from polymath.envs.types import DomainSpec
from polymath.errors import UserError
from polymath.model import config as model_config
from polymath.model.config import ModelConfig
from polymath.rl.advantages.registry import build_advantage
from polymath.rl.checkpoints import Checkpoints, complete, step_of
from polymath.rl.cluster import cluster
from polymath.rl.collector import Collector
from polymath.rl.controller import Components, Controller
from polymath.rl.credit import Credit
from polymath.rl.curriculum import Curriculum, Kind, kinds
from polymath.rl.evaluation import EvaluationResult, Evaluator
from polymath.rl.interrupts import EXIT_INTERRUPTED, interrupts
from polymath.rl.ledger import Ledger
from polymath.rl.observer import Observer
from polymath.rl.plan import check
from polymath.rl.runs import RunFolder
from polymath.rl.schema import TrainConfig
from polymath.rl.services import Services
from polymath.rl.tracking.before_after import final_table, gain_metrics
from polymath.rl.tracking.panel import Panel, open_panel
from polymath.rl.tracking.records import read_evaluations
from polymath.rl.tracking.report import write_report
from polymath.rl.tracking.terminal import captured
from polymath.rl.tracking.tracker import Tracker
from polymath.rl.weight_sync import WeightSync
from polymath.rollout.engine.base import SamplingSpec
from polymath.rollout.engine.preflight import check_folder
from polymath.rollout.renderer.polymath import PolymathRenderer


def train(composed: Composed) -> int:
    """Run `polymath train`; the exit code. Typed errors leave as they are."""
    config = cast(TrainConfig, composed.config)
    with RunFolder.open(config.run, config.resume) as folder:
        plan = _Plan(config)
        _refuse_finished(folder, config)
        folder.write_config(composed.yaml)
        with (
            captured(folder.logs / "libraries.log") as screen,
            open_panel(config.tracking, screen) as panel,
            cluster(config.ray),
        ):
            run = _Run(config, composed, plan, folder, panel)
            finished = asyncio.run(run.train())
        report = write_report(folder.path) if run.step else None
        if not finished:
            print(f"interrupted after step {run.step}; go on with resume=auto")
            return EXIT_INTERRUPTED
        final_table(read_evaluations(folder.path), Console())
        print(f"report: {report}")
    return 0


def evaluate(composed: Composed) -> EvaluationResult:
    """Run `polymath eval`: held-out reward by mode, domain and level."""
    config = cast(TrainConfig, composed.config)
    with RunFolder.open(config.run, "auto") as folder:
        plan = _Plan(config)
        with captured(folder.logs / "libraries.log"), cluster(config.ray):
            return asyncio.run(_evaluate(config, plan, folder))


class _Plan:
    """What can be checked before anything starts: numbers, domains, levels, model, sandboxes."""

    def __init__(self, config: TrainConfig) -> None:
        check(config)
        self.specs: Mapping[str, DomainSpec] = {
            domain: registry.get(domain).spec for domain in config.mixture.domains
        }
        self.kinds: list[Kind] = kinds(config.mixture, self.specs)
        path = config.model.path
        if not path:
            raise UserError("model.path is empty: name a checkpoint folder, or starter")
        check_folder(path)
        self.model: ModelConfig = model_config.read(path).replace(path=path)
        self.renderer = PolymathRenderer(model_config.resolve(path))
        self.sampling = SamplingSpec(
            config.rollout.max_turn_tokens, config.rollout.temperature, config.rollout.top_p
        )
        select(config.sandbox)

    def evaluator(self, config: TrainConfig, services: Services) -> Evaluator:
        """Held-out evaluation with these services."""
        floors = {domain: spec.reward_range[0] for domain, spec in self.specs.items()}
        return Evaluator(
            services.workers,
            self.kinds,
            seeds_per_level=config.evaluation.seeds_per_level,
            sampling=self.sampling,
            greedy=config.evaluation.greedy,
            truncated_rewards=floors if config.rollout.truncated == "floor" else None,
            deadline=config.deadline.batch,
        )


class _Run:
    """A training run between its start and its end."""

    def __init__(
        self, config: TrainConfig, composed: Composed, plan: _Plan, folder: RunFolder, panel: Panel
    ) -> None:
        self._config = config
        self._composed = composed
        self._plan = plan
        self._folder = folder
        self._panel = panel
        self.step = 0

    async def train(self) -> bool:
        """Bring services up, run the controller, take everything down; True when all steps are done."""
        services = Services()
        tracker: Tracker | None = None
        try:
            tracker = self._tracker()
            observer = Observer(
                tracker, self._panel, self._plan.renderer,
                run=self._config.run.name, steps=self._config.steps,
            )  # fmt: skip
            await services.start(self._config, self._plan.model, self._folder, learner=True)
            controller = self._controller(services, tracker, observer)
            await self._refuse_unread(services)
            with interrupts(controller.interrupt):
                finished = await controller.run()
            self.step = controller.step
            if finished:
                tracker.summary(gain_metrics(read_evaluations(self._folder.path)))
            return finished
        finally:
            try:
                if tracker is not None:
                    tracker.close()
            finally:
                await services.close()

    def _tracker(self) -> Tracker:
        newest = _newest(self._folder)
        fresh = not (self._folder.path / "metrics.jsonl").exists()
        step = None if fresh else (-1 if newest is None else newest)
        return Tracker(
            self._config.tracking,
            self._folder.path,
            resume_step=step,
            run_config=self._config.to_dict(),
        )

    def _controller(self, services: Services, tracker: Tracker, observer: Observer) -> Controller:
        config, plan = self._config, self._plan
        assert services.learner is not None
        curriculum = Curriculum(config.mixture, plan.specs, config.run.seed)
        ledger = Ledger()
        observer.watch(services.engines, ledger)
        parts = Components(
            collector=Collector(
                services.workers,
                curriculum,
                groups_per_step=config.groups_per_step,
                group_size=config.group_size,
                staleness=config.staleness,
                sampling=plan.sampling,
                deadline=config.deadline.batch,
            ),
            credit=Credit(
                build_advantage(config.algorithm),
                plan.specs,
                truncated=config.rollout.truncated,
                staleness=config.staleness,
            ),
            learner=services.learner,
            ledger=ledger,
            sync=WeightSync(
                services.learner, services.engines, self._folder.path / "weights",
                deadline=config.deadline.sync,
            ),
            curriculum=curriculum,
            evaluator=plan.evaluator(config, services),
            checkpoints=Checkpoints(
                self._folder.checkpoints, services.learner,
                every=config.checkpoint.every, keep=config.checkpoint.keep,
            ),
            observer=observer,
            workers=services.workers,
        )  # fmt: skip
        return Controller(parts, steps=config.steps, evaluate_every=config.evaluation.every)

    async def _refuse_unread(self, services: Services) -> None:
        if keys := unread(self._composed, await services.config_reads()):
            raise UserError(
                f"configuration key {keys[0]} was set, but nothing in this run reads it; remove it"
            )


async def _evaluate(config: TrainConfig, plan: _Plan, folder: RunFolder) -> EvaluationResult:
    services = Services()
    try:
        await services.start(config, plan.model, folder, learner=False)
        return await plan.evaluator(config, services).run(0, "before")
    finally:
        await services.close()


def _newest(folder: RunFolder) -> int | None:
    """The step of the newest complete checkpoint."""
    return max(map(step_of, complete(folder.checkpoints)), default=None)


def _refuse_finished(folder: RunFolder, config: TrainConfig) -> None:
    """A run that would do no step says so instead of ending well."""
    newest = _newest(folder)
    if newest is None or newest < config.steps:
        return
    evaluated = any(
        (record.split, record.step) == ("after", newest) for record in read_evaluations(folder.path)
    )
    if evaluated or not config.evaluation.seeds_per_level:
        raise UserError(
            f"run {config.run.name} is complete at step {newest}: "
            "raise steps to go on, or choose another run.name"
        )
