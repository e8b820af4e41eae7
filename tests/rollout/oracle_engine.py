"""A stand-in engine that can be sent to a rollout worker: it plays the oracle of each request.

Episode ids begin with ``domain@level@seed@``, which is all that it needs to know the oracle.
"""

from __future__ import annotations

from scripted_engine import ScriptedEngine

from polymath.envs import registry
from polymath.envs.contract import Policy
from polymath.rollout.engine.base import EngineError, Generation, SamplingSpec
from polymath.rollout.renderer.polymath import PolymathRenderer
from polymath.rollout.types import Tokens


def group_id(domain: str, level: int, seed: int) -> str:
    return f"{domain}@{level}@{seed}@"


class OracleEngine:
    """``tokenizer`` is the folder of the tokenizer. A group whose seed is ``sick`` never samples."""

    def __init__(self, tokenizer: str, sick: int) -> None:
        self.tokenizer, self.sick = tokenizer, sick
        self._engine: ScriptedEngine | None = None

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        if request_id.split("@")[2] == str(self.sick):
            raise EngineError("engine 0 died")
        if self._engine is None:
            self._engine = ScriptedEngine(PolymathRenderer(self.tokenizer), oracle_of)
        return await self._engine.generate(request_id, prompt, sampling)

    async def abort(self, request_id: str) -> None:
        return None


def oracle_of(episode: str) -> Policy:
    domain_id, level, seed, _ = episode.split("@")
    domain = registry.get(domain_id)
    return domain.oracle(domain.sample(int(seed), domain.spec.level(int(level))))
