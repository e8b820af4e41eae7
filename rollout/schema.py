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
    enforce_eager: bool = True
    """Run without graph capture or compilation."""
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
