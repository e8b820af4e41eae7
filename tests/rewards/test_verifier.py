import asyncio

from polymath.envs.types import Artifact, Deadline
from polymath.rewards.verdict import Status, Verdict
from polymath.rewards.verifier import Judge, PlainVerifier


def verdict(judge: Judge, artifact: Artifact) -> Verdict:
    verifier = PlainVerifier(judge)
    return asyncio.run(verifier.verify(artifact, None, Deadline.after(5)))  # type: ignore[arg-type]


def test_the_judges_reward_is_the_verdict() -> None:
    assert verdict(lambda artifact: 0.5, Artifact()).reward == 0.5


def test_an_artifact_that_breaks_the_judge_gets_the_floor() -> None:
    found = verdict(lambda artifact: float(artifact.answer or "0"), Artifact("junk"))
    assert found.status is Status.OK
    assert found.reward == 0.0
    assert "junk" in found.evidence["fault"]


def test_a_judge_that_breaks_on_anything_is_our_fault() -> None:
    def broken(artifact: Artifact) -> float:
        raise OSError("disk gone")

    found = verdict(broken, Artifact("right"))
    assert found.status is Status.INVALID
    assert found.reward is None


def test_a_reward_outside_the_range_never_leaves() -> None:
    assert verdict(lambda artifact: 2.0 if artifact.answer else 0.0, Artifact("x")).reward == 0.0
    assert verdict(lambda artifact: float("nan"), Artifact("x")).status is Status.INVALID


def test_milestones_of_a_hostile_artifact_are_none() -> None:
    def milestones(artifact: Artifact) -> dict[str, float]:
        return {"half": float(artifact.files["a"][0] > 0)}

    verifier = PlainVerifier(lambda artifact: 0.0, milestones)
    for files, expected in (({"a": b"\x01"}, {"half": 1.0}), ({}, {}), ({"a": b""}, {})):
        progress = verifier.progress(Artifact(None, files), None, Deadline.after(5))  # type: ignore[arg-type]
        assert asyncio.run(progress) == expected
