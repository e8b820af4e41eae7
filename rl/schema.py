"""The configuration of a training run; each section lies beside the code that it configures."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymath.configs import Section
from polymath.envs.sandbox.schema import SandboxConfig
from polymath.model.config import ModelConfig
from polymath.rl.learner.schema import LearnerConfig
from polymath.rl.losses.schema import AlgorithmConfig
from polymath.rl.tracking.schema import TrackingConfig
from polymath.rollout.schema import EngineConfig, RolloutConfig, RunStoreConfig, VerifierConfig


@dataclass(frozen=True)
class RunConfig(Section):
    """Where a run lives. ``folder/name`` holds everything and can be moved or copied whole."""

    name: str = "run"
    """The run's name, and its folder's."""
    folder: str = "runs"
    """The folder of all runs."""
    seed: int = 0
    """Seeds the task draw and the learner; two runs with one seed draw the same tasks."""


@dataclass(frozen=True)
class RayConfig(Section):
    """The Ray cluster."""

    address: str = "local"
    """``local`` starts a cluster for this run and ends it with the run; else a cluster's address."""
    connect_seconds: float = 60.0
    """How long a cluster that was named may take to answer."""
    object_store_bytes: int = 512 << 20
    """Shared memory for rows and episodes (local cluster)."""


@dataclass(frozen=True)
class DomainShare(Section):
    """How one domain takes part."""

    weight: float = 1.0
    """Its share of the drawn tasks, relative to the others'."""
    levels: tuple[int, ...] = ()
    """Which of its levels; empty means all."""


@dataclass(frozen=True)
class MixtureConfig(Section):
    """Which domains a run trains on."""

    domains: dict[str, DomainShare] = field(default_factory=dict)
    """By domain id."""
    efforts: tuple[str, ...] = ("low", "high")
    """The efforts that prompts ask for, drawn evenly."""


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """Held-out evaluation, on seeds that training never draws."""

    seeds_per_level: int = 12
    """Held-out tasks for each level of each domain; 0 turns evaluation off."""
    every: int = 0
    """Also evaluate each so many steps; 0 means only before the first and after the last."""
    greedy: bool = True
    """Evaluate at temperature 0 as well as at the training temperature."""


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """What is kept to go on from."""

    every: int = 10
    """Save each so many steps; also saved at the end and when interrupted."""
    keep: int = 2
    """How many of the newest checkpoints stay."""


@dataclass(frozen=True)
class DeadlineConfig(Section):
    """Every wait of the controller has an end, in seconds."""

    start: float = 300.0
    """For engines, learner and services to be ready."""
    batch: float = 600.0
    """For the groups of one batch."""
    sync: float = 120.0
    """For every engine to take in and prove new weights."""


@dataclass(frozen=True)
class TrainConfig(Section):
    """A training run."""

    run: RunConfig = field(default_factory=RunConfig)
    resume: str = "never"
    """``never`` refuses a folder that holds a run, ``auto`` goes on from its newest checkpoint."""
    steps: int = 20
    """How many optimizer steps."""
    groups_per_step: int = 16
    """How many (task, effort) groups make a batch."""
    group_size: int = 8
    """How many episodes make a group."""
    staleness: int = 0
    """Highest age in steps of the weights that sampled what a step trains on; 0 is on-policy."""
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    run_store: RunStoreConfig = field(default_factory=RunStoreConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    deadline: DeadlineConfig = field(default_factory=DeadlineConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass(frozen=True)
class DemonstrationConfig(Section):
    """Supervised data from scripted policies."""

    episodes: int = 6000
    """Distinct oracle episodes; they are gone through as often as the steps need."""
    imperfect_episodes: int = 1200
    """Distinct episodes of the last stage, of which ``imperfect`` stop too early and guess."""
    imperfect: float = 0.5
    """Share of imperfect episodes in the last stage."""
    parallel: int = 4
    """Sandboxes in use at once."""


@dataclass(frozen=True)
class SupervisedConfig(Section):
    """Supervised training on demonstrations: from nothing to a starter policy."""

    run: RunConfig = field(default_factory=RunConfig)
    copy_steps: int = 150
    """First steps, on copying alone: a small policy that cannot copy names learns everything around them
    and then never gets to them."""
    copy_share: float = 0.2
    """Share of copying in the steps that follow, until the last stage."""
    steps: int = 900
    """Optimizer steps on oracle episodes, those of copying included."""
    soften_steps: int = 100
    """Further steps in which imperfect episodes are mixed in."""
    rows_per_step: int = 24
    """Episodes in a step."""
    vocab_size: int = 1024
    """Size of a new tokenizer; ignored when ``model.path`` brings one."""
    log_every: int = 10
    """Report the loss each so many steps."""
    model: ModelConfig = field(default_factory=ModelConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    output: str = ""
    """Folder for the finished policy; empty means ``policy`` in the run's folder."""
