"""The verdict of a verifier.

Only OK and TAMPERED train; TAMPERED at the domain's floor. INVALID and TIMEOUT are faults of ours:
they are masked, counted and shown, never turned into a reward, never a way out of a bad one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What a verdict says about itself."""

    OK = "ok"
    TAMPERED = "tampered"
    INVALID = "invalid"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reward`` is finite exactly where the status trains, and None otherwise.

    Raises ``ValueError`` for a reward that breaks this rule.
    """

    status: Status
    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trains:
            if self.reward is None or not math.isfinite(self.reward):
                raise ValueError(
                    f"a verdict {self.status} needs a finite reward, not {self.reward}"
                )
        elif self.reward is not None:
            raise ValueError(f"a verdict {self.status} has no reward, not {self.reward}")

    @property
    def trains(self) -> bool:
        """Whether an episode with this verdict may be trained on."""
        return self.status in (Status.OK, Status.TAMPERED)


def ok(reward: float, evidence: Mapping[str, Any] | None = None, **components: float) -> Verdict:
    """A sound verdict."""
    return Verdict(Status.OK, float(reward), components, evidence or {})


def tampered(floor: float, why: str) -> Verdict:
    """The agent attacked the check; it gets the domain's floor."""
    return Verdict(Status.TAMPERED, floor, {}, {"why": why})


def invalid(why: str) -> Verdict:
    """The check itself failed, on a control artifact as well."""
    return Verdict(Status.INVALID, None, {}, {"why": why})


def timed_out(why: str) -> Verdict:
    """The check ran out of time, on a control artifact as well."""
    return Verdict(Status.TIMEOUT, None, {}, {"why": why})
