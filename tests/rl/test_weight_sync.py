import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from polymath.rl.weight_sync import CANARY_TOLERANCE, WeightSync, WeightSyncError
from polymath.rollout.engine.base import WeightProof, WeightUpdate
from polymath.rollout.types import Floats, Tokens

PROMPT, TOKENS, LOGPROBS = (5, 6), (7, 8), (-0.5, -1.5)


@dataclass
class Publisher:
    """A stand-in learner that publishes bytes and knows the canary's log-probabilities."""

    digest: str = "d"

    async def publish(self, version: int, folder: str) -> WeightUpdate:
        path = Path(folder) / f"weights-{version}.safetensors"
        path.write_bytes(b"weights")
        return WeightUpdate(version, str(path), self.digest)

    async def logprobs(self, documents: list[Tokens]) -> list[Floats]:
        return [np.array([0.0, -9.0, *LOGPROBS], np.float32) for _ in documents]


@dataclass
class Holder:
    """A stand-in engine that answers with a given proof."""

    name: str = "engine-0"
    digest: str = "d"
    off: float = 0.0
    hang: bool = False

    async def update_weights(self, update: WeightUpdate) -> WeightProof:
        if self.hang:
            await asyncio.Event().wait()
        logprobs = tuple(value + self.off for value in LOGPROBS)
        return WeightProof(self.name, update.version, self.digest, PROMPT, TOKENS, logprobs)


def publish(folder: Path, *engines: Holder, versions: Callable[[], range] = lambda: range(1, 2)):  # type: ignore[no-untyped-def]
    async def work():  # type: ignore[no-untyped-def]
        sync = WeightSync(Publisher(), engines, folder / "weights", deadline=0.2)  # type: ignore[arg-type]
        return [await sync.publish(version) for version in versions()]

    return asyncio.run(work())


def test_engines_that_hold_and_compute_the_same_pass(tmp_path: Path) -> None:
    (report,) = publish(tmp_path, Holder(), Holder("engine-1", off=1e-5))
    assert report.version == 1
    assert report.bytes == len(b"weights")
    assert report.canary_difference == pytest.approx(1e-5, rel=0.05)


def test_an_engine_that_holds_other_bytes_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match="engine-1 holds weights stale after version 1"):
        publish(tmp_path, Holder(), Holder("engine-1", digest="stale"))


@pytest.mark.parametrize("off", [2 * CANARY_TOLERANCE, -0.3, float("nan")])
def test_an_engine_that_computes_something_else_is_named(tmp_path: Path, off: float) -> None:
    with pytest.raises(WeightSyncError, match="engine-0 computes other log-probabilities"):
        publish(tmp_path, Holder(off=off))


def test_an_engine_that_never_answers_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match="engine 0 did not take in version 1.*deadline.sync"):
        publish(tmp_path, Holder(hang=True))


def test_only_the_newest_published_file_stays(tmp_path: Path) -> None:
    publish(tmp_path, Holder(), versions=lambda: range(1, 4))
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["weights-3.safetensors"]
