"""Publishes the learner's weights to every engine and has every engine prove what it now holds.

A proof is two things: the digest of the engine's live parameters, which must equal the learner's, and
log-probabilities of a canary, which the learner recomputes. The digest shows that the bytes arrived,
the canary that the engine computes with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polymath.errors import PolymathError
from polymath.rl.learner.base import Learner
from polymath.rollout.engine.base import Engine, WeightProof, WeightUpdate

CANARY_TOLERANCE = 1e-3
"""Highest |difference of log-probabilities| between engine and learner on the canary. Both compute in
float32 and differ by about 1e-5; wrong weights differ by more than 1e-1."""


class WeightSyncError(PolymathError):
    """An engine did not take the weights in, or computes something else with them."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one publication cost and showed."""

    version: int
    seconds: float
    bytes: int
    canary_difference: float


class WeightSync:
    """Knows the learner and the engines; nothing serves between a failed proof and the error."""

    def __init__(
        self, learner: Learner, engines: Sequence[Engine], folder: Path, *, deadline: float
    ) -> None:
        self._learner = learner
        self._engines = list(engines)
        self._folder = folder
        self._deadline = deadline
        self._published: Path | None = None

    async def publish(self, version: int) -> SyncReport:
        """Bring every engine to the learner's current weights under this version number."""
        started = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        update = await self._learner.publish(version, str(self._folder))
        proofs = await asyncio.gather(
            *(self._update(index, engine, update) for index, engine in enumerate(self._engines))
        )
        difference = await self.check(update.digest, proofs)
        size = Path(update.path).stat().st_size
        if self._published is not None and self._published != Path(update.path):
            self._published.unlink(missing_ok=True)
        self._published = Path(update.path)
        return SyncReport(version, time.monotonic() - started, size, difference)

    async def check(self, digest: str, proofs: Sequence[WeightProof]) -> float:
        """Compare proofs with the learner; return the largest canary difference.

        Raises ``WeightSyncError`` that names the engine.
        """
        for proof in proofs:
            if proof.digest != digest:
                raise WeightSyncError(
                    f"{proof.engine} holds weights {proof.digest[:12]} after version "
                    f"{proof.version}, the learner published {digest[:12]}"
                )
        expected = await self._learner.logprobs(
            [np.array(proof.canary_prompt + proof.canary_tokens, np.int32) for proof in proofs]
        )
        worst = 0.0
        for proof, logprobs in zip(proofs, expected, strict=True):
            tail = np.asarray(logprobs)[-len(proof.canary_tokens) :]
            difference = float(np.abs(tail - np.array(proof.canary_logprobs)).max())
            if not difference <= CANARY_TOLERANCE:
                raise WeightSyncError(
                    f"{proof.engine} computes other log-probabilities than the learner with the same "
                    f"weights (version {proof.version}): off by {difference:.2g} on the canary"
                )
            worst = max(worst, difference)
        return worst

    async def _update(self, index: int, engine: Engine, update: WeightUpdate) -> WeightProof:
        try:
            async with asyncio.timeout(self._deadline):
                return await engine.update_weights(update)
        except TimeoutError:
            raise WeightSyncError(
                f"engine {index} did not take in version {update.version} within "
                f"deadline.sync={self._deadline:.0f} s"
            ) from None
