"""How rollouts run: engines, agent loop and verifiers."""

from __future__ import annotations

from dataclasses import dataclass

from polymath.configs import Section


@dataclass(frozen=True)
class EngineConfig(Section):
    """One kind of inference engine and how many of them."""

    kind: str = "vllm"
    """``vllm``: vLLM in a Ray actor."""
    count: int = 1
    """Engines; each holds the whole model."""
    dtype: str = "float32"
    """What the engine computes in; it must be the dtype of the published weights."""
    max_model_len: int = 4096
    """Longest context of one request, prompt and sampled tokens together."""
    max_running: int = 64
    """Requests decoded together; more wait inside the engine."""
    max_batched_tokens: int = 2048
    """Tokens of one engine step; a longer prompt is prefilled in chunks."""
    block_tokens: int = 64
    """Tokens of one cache block; prefixes are reused in whole blocks."""
    kv_cache_gb: float = 0.5
    """Memory for latents, index keys and recurrent states, in GiB."""
    prefix_caching: bool = True
    """Keep finished prefixes for later turns of the same version of the weights."""
    threads: int = 1
    """Compute threads of each engine on the CPU."""
    seed: int = 0
    """Seeds sampling; each engine adds its own index."""
    canary_tokens: int = 16
    """Tokens sampled greedily to prove what the engine computes."""
    start_seconds: float = 240.0
    """Deadline for load, warm-up and first proof."""
    update_seconds: float = 60.0
    """Deadline for taking in and proving one version."""


@dataclass(frozen=True)
class RolloutConfig(Section):
    """How episodes are played."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass; behaviour log-probabilities are those after temperature and top-p."""
    max_turn_tokens: int = 256
    """Tokens that one turn may sample; more is truncated(turn_tokens)."""
    max_episode_tokens: int = 2048
    """Context of one episode, prompts and sampled tokens together; at most the engine's."""
    turns: int = 16
    """Model calls of one episode; the domain's own limit holds too."""
    truncated: str = "floor"
    """``floor`` trains a truncated episode at the domain's floor, ``drop`` leaves it out."""
    workers: int = 1
    """Rollout workers; each is one process."""
    concurrency: int = 64
    """Episodes that one worker plays at a time."""
    retries: int = 2
    """New attempts after an infrastructure failure, per episode."""
    grace_seconds: float = 10.0
    """How long after its deadline an engine or session may still answer."""
    lease_seconds: float = 900.0
    """Time to live of a borrowed sandbox; at least an episode's longest time."""
    journal_seconds: float = 60.0
    """Deadline of writing turns to the run store."""
    affinity: bool = True
    """Keep a group on one engine, whose cache then holds the common prompt."""


@dataclass(frozen=True)
class VerifierConfig(Section):
    """How artifacts are checked."""

    workers: int = 2
    """Verifier processes; each checks one artifact at a time."""
    seconds: float = 30.0
    """Deadline of one check, counted from its start and not from its place in the queue."""
    load_seconds: float = 120.0
    """Deadline for starting a process and importing a domain in it."""
    queue_seconds: float = 600.0
    """How long a check may wait for a free process."""
    memory_gb: float = 4.0
    """Address space of one verifier process, in GiB."""
    lease_seconds: float = 600.0
    """Time to live of a sandbox that a verifier borrows."""


@dataclass(frozen=True)
class RunStoreConfig(Section):
    """The append-only log of a run."""

    segment_mb: float = 64.0
    """A file is closed and the next one begun at this size, in MiB."""
    fsync_seconds: float = 1.0
    """Flush to the disk at most this often: 0 after every append, below 0 never."""
