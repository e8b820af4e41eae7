"""Weights & Biases: offline into the run's folder by default, online on request.

It is a mirror of ``metrics.jsonl`` and never more than that: whatever goes wrong with it is one
warning, and nothing of it reaches the terminal. `wandb sync <run>/wandb/offline-run-*` sends an
offline run later.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polymath.rl.tracking.sinks.base import TableRow

if TYPE_CHECKING:
    import wandb

RUN_ID = "run_id"
"""File in the run's ``wandb/`` folder: a resumed run goes on under the same id."""


@dataclass(frozen=True, slots=True)
class WandbTarget:
    """Where the mirror goes. ``mode`` is ``offline`` or ``online``."""

    mode: str
    project: str
    entity: str
    group: str
    seconds: float


class WandbSink:
    """A run at Weights & Biases, or a folder that can be sent there."""

    def __init__(
        self,
        target: WandbTarget,
        folder: Path,
        run_config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        """Start the run. If online mode fails, ``warn`` is told and the run goes on offline.

        Raises whatever wandb raises if even offline mode fails.
        """
        self._folder = folder
        self._target = target
        self._config = dict(run_config)
        self._id = _run_id(folder / "wandb" / RUN_ID)
        if target.mode == "online":
            try:
                self._run = self._start("online")
                return
            except (
                Exception
            ) as error:  # any failure of a remote service, and wandb has many classes for it
                _forget_failed_start()
                warn(
                    f"Weights & Biases cannot be used online ({_one_line(error).rstrip('.')}); the run is "
                    "recorded offline, `wandb sync` can send it later"
                )
        self._run = self._start("offline")

    def _start(self, mode: str) -> wandb.Run:
        import wandb

        quiet = {"silent": True, "console": "off", "show_info": False, "show_warnings": False}
        wandb.setup(settings=wandb.Settings(**quiet))
        target = self._target
        settings = wandb.Settings(
            **quiet,
            show_errors=False,
            init_timeout=target.seconds,
            finish_timeout=target.seconds,
            x_disable_stats=True,  # one writer of metrics, on one clock
            disable_git=True,
            disable_code=True,
            save_code=False,
        )
        return wandb.init(
            mode=mode,  # type: ignore[arg-type]
            dir=str(self._folder),
            id=self._id,
            resume="allow" if mode == "online" else None,
            name=self._folder.name,
            project=target.project,
            entity=target.entity or None,
            group=target.group or None,
            config=self._config,
            settings=settings,
        )

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Metrics of one step, on the step clock."""
        del time
        self._run.log(dict(values), step=step)

    def table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """A table of that step."""
        import wandb

        columns = list(rows[0])
        data = [[_cell(row[column]) for column in columns] for row in rows]
        self._run.log({f"tables/{name}": wandb.Table(columns=columns, data=data)}, step=step)

    def summary(self, values: Mapping[str, float]) -> None:
        """Shown at the run's head."""
        self._run.summary.update(dict(values))

    def close(self) -> None:
        """End the run; waits for what is left, but no longer than the configured seconds."""
        self._run.finish()


def _forget_failed_start() -> None:
    """A failed start keeps the run's id taken inside wandb's own service; a fresh service
    frees it.
    """
    import wandb

    wandb.teardown()


def _run_id(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12] + "\n")
        return path.read_text().strip()


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else json.dumps(value, default=str)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
