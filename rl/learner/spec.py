"""What a rank is told once: plain values, unpacked from the configuration in the driver."""

from __future__ import annotations

from dataclasses import dataclass

from polymath.errors import UserError
from polymath.model.config import ModelConfig
from polymath.rl.learner.schema import LearnerConfig
from polymath.rl.losses.base import Loss
from polymath.rl.losses.registry import build_loss
from polymath.rl.losses.schema import AlgorithmConfig
from polymath.rl.optimizers import OptimizerSpec, Schedule
from polymath.rl.packing import Budget

COMPUTE_DTYPES = ("float32", "bfloat16", "float64")
"""``float64`` is for comparisons: master weights are float64 as well then."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One spec serves all ranks of a learner."""

    model: ModelConfig
    loss: Loss
    optimizer: OptimizerSpec
    schedule: Schedule
    budget: Budget
    ranks: int
    threads: int
    device: str
    compute_dtype: str
    temperature: float
    max_grad_norm: float
    indexer_coefficient: float
    dense_steps: int
    router_bias_rate: float
    seed: int
    start_seconds: float
    step_seconds: float
    storage_seconds: float


def rank_spec(
    config: LearnerConfig, algorithm: AlgorithmConfig, model: ModelConfig, temperature: float
) -> RankSpec:
    """Unpack and check the configuration. Raises ``UserError`` that names the key."""
    if config.kind != "fsdp":
        raise UserError(f"learner.kind={config.kind} is not known; it can be fsdp")
    if config.device not in ("cpu", "cuda"):
        raise UserError(f"learner.device={config.device} is not known; it can be cpu, cuda")
    if config.compute_dtype not in COMPUTE_DTYPES:
        raise UserError(
            f"learner.compute_dtype={config.compute_dtype} is not known; "
            f"it can be {', '.join(COMPUTE_DTYPES)}"
        )
    if config.workers < 1 or config.threads < 1:
        raise UserError("learner.workers and learner.threads must be at least 1")
    if not temperature > 0:
        raise UserError(f"the learner needs a sampling temperature above 0, not {temperature}")
    return RankSpec(
        model=model,
        loss=build_loss(algorithm),
        optimizer=OptimizerSpec(
            kind=config.optimizer,
            learning_rate=config.learning_rate,
            muon_learning_rate=config.muon_learning_rate,
            weight_decay=config.weight_decay,
            betas=(config.beta1, config.beta2),
            epsilon=config.epsilon,
            momentum=config.momentum,
        ),
        schedule=Schedule(
            config.schedule,
            config.warmup_steps,
            config.horizon_steps,
            config.final_fraction,
            config.decay_start_steps,
        ),
        budget=Budget(config.lane_tokens, config.tokens_per_microbatch, model.chunk_size),
        ranks=config.workers,
        threads=config.threads,
        device=config.device,
        compute_dtype=config.compute_dtype,
        temperature=temperature,
        max_grad_norm=config.max_grad_norm,
        indexer_coefficient=config.indexer_coefficient,
        dense_steps=config.dense_steps,
        router_bias_rate=config.router_bias_rate,
        seed=config.seed,
        start_seconds=config.start_seconds,
        step_seconds=config.step_seconds,
        storage_seconds=config.storage_seconds,
    )
