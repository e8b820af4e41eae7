"""How the learner runs: ranks, memory, optimizer, schedule and deadlines."""

from __future__ import annotations

from dataclasses import dataclass

from polymath.configs import Section


@dataclass(frozen=True)
class LearnerConfig(Section):
    """The learner. Sizes are in tokens, times in seconds."""

    kind: str = "fsdp"
    """``fsdp``: FSDP2 in Ray actors, gloo on the CPU and NCCL on GPUs."""
    workers: int = 1
    """Ranks; each is a Ray actor, on GPUs with one device."""
    threads: int = 2
    """Threads of each rank."""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    compute_dtype: str = "float32"
    """What forward and backward compute in; master weights and reductions stay float32."""
    tokens_per_microbatch: int = 4096
    """Upper bound of one micro-batch, padding included."""
    lane_tokens: int = 256
    """Rows are packed into lanes of at most this length, or of the longest row if that is longer.
    """
    optimizer: str = "adamw"
    """``adamw``, or ``muon`` for the hidden matrices with AdamW for everything else."""
    learning_rate: float = 2e-4
    """Peak rate of AdamW."""
    muon_learning_rate: float = 3e-3
    """Peak rate of Muon."""
    weight_decay: float = 0.0
    """Decoupled; matrices only."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    epsilon: float = 1e-8
    """AdamW's epsilon."""
    momentum: float = 0.95
    """Muon's momentum (Nesterov)."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    schedule: str = "constant"
    """``constant``, ``linear`` or ``cosine``, after the warm-up."""
    warmup_steps: int = 0
    """Steps of linear warm-up."""
    decay_start_steps: int = 0
    """The step at which a decay begins; until then the rate stays at its peak."""
    horizon_steps: int = 0
    """The step at which a decay ends; required by ``linear`` and ``cosine``."""
    final_fraction: float = 0.1
    """The rate at the end of a decay, relative to the peak."""
    indexer_coefficient: float = 1.0
    """Weight of the indexer's own KL loss, which alone trains the indexer."""
    dense_steps: int = 0
    """Steps at the start in which the sparse layers attend to everything while their indexers learn what
    matters: selections of an untrained indexer hide what the policy should learn to look at."""
    router_bias_rate: float = 0.0
    """Step of the routers' balance bias against overloaded experts; 0 leaves the biases alone."""
    seed: int = 0
    """Seeds the ranks' random state."""
    start_seconds: float = 180.0
    """Deadline for all ranks to hold the model."""
    step_seconds: float = 600.0
    """Deadline for a step, for log-probabilities and for each wait between ranks."""
    storage_seconds: float = 300.0
    """Deadline for publishing, saving and loading."""
