"""What is written down about a run, and where one can watch it."""

from __future__ import annotations

from dataclasses import dataclass

from polymath.configs import Section

_CHOICES = {"wandb": ("offline", "online", "off"), "panel": ("auto", "on", "off")}


@dataclass(frozen=True)
class TrackingConfig(Section):
    """``metrics.jsonl`` is always written; the rest is chosen here. Raises ``ValueError`` for a bad
    choice.
    """

    wandb: str = "offline"
    """Weights & Biases: ``offline`` writes into the run's folder, ``online`` sends, ``off``."""
    project: str = "polymath"
    """Weights & Biases project."""
    entity: str = ""
    """Weights & Biases team or user; empty means the account's default."""
    group: str = ""
    """Joins runs in Weights & Biases, such as the seeds of one experiment."""
    online_seconds: float = 30.0
    """How long to wait for Weights & Biases to answer at the start, and to take the rest at
    the end.
    """
    panel: str = "auto"
    """The live terminal panel; ``auto`` shows it where stdout is a terminal, else one line a
    step.
    """
    episodes: int = 4
    """How many example episodes a table holds."""
    episodes_every: int = 10
    """A table of example episodes each so many steps; 0 means none."""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = dict(self.items())[name]
            if value not in allowed:
                hint = ' (in YAML, quote "on" and "off")' if value in ("True", "False") else ""
                raise ValueError(
                    f"tracking.{name} must be one of {', '.join(allowed)}, not {value!r}{hint}"
                )
