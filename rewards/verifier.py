"""The verifier of domains whose artifacts are plain data: one function judges, no sandbox needed.

It keeps the rule of DESIGN 2 in one place: a fault that the artifact causes scores the floor, and a
fault that a control artifact (an empty one) causes as well is ours, hence INVALID.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymath.envs.sandbox.base import Sandbox
from polymath.envs.types import Artifact, Deadline
from polymath.rewards.verdict import Verdict, invalid, ok

Judge = Callable[[Artifact], float]
Milestones = Callable[[Artifact], Mapping[str, float]]


class PlainVerifier:
    """Scores an artifact with ``judge`` and clamps nothing: the reward must lie in the range.

    ``judge(artifact)`` returns the reward. ``milestones(artifact)`` returns values in [0, 1].
    """

    def __init__(
        self,
        judge: Judge,
        milestones: Milestones | None = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self._judge = judge
        self._milestones = milestones
        self._floor, self._maximum = reward_range

    async def progress(
        self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline
    ) -> Mapping[str, float]:
        """The milestones reached; none where the artifact breaks their check."""
        if self._milestones is None:
            return {}
        try:
            return self._milestones(artifact)
        except Exception:
            return {}

    async def verify(self, artifact: Artifact, sandbox: Sandbox, deadline: Deadline) -> Verdict:
        """OK with the judge's reward; the floor where only this artifact breaks the judge."""
        try:
            return self._verdict(artifact)
        except Exception as fault:
            found = f"{type(fault).__name__}: {str(fault)[:200]}"
        try:
            self._verdict(Artifact())
        except Exception:
            return invalid(f"the check fails on an empty artifact as well: {found}")
        return ok(self._floor, {"fault": found})

    def _verdict(self, artifact: Artifact) -> Verdict:
        reward = self._judge(artifact)
        if not self._floor <= reward <= self._maximum:
            raise ValueError(f"reward {reward} outside [{self._floor}, {self._maximum}]")
        return ok(reward)
