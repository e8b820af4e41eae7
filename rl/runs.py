"""A run's folder: it holds everything of one run and can be moved or copied whole."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import IO

from polymath.errors import UserError
from polymath.rl.schema import RunConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SMALLEST_FREE_BYTES = 200 << 20
"""A run writes checkpoints, metrics and logs; with less than this left on the disk it stops at once."""


class RunFolder:
    """An open run: locked, so that no second process writes into it."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self._lock = lock

    @classmethod
    def open(cls, config: RunConfig, resume: str = "never") -> RunFolder:
        """Make or reopen the folder ``config.folder/config.name``.

        Raises ``UserError`` for a bad name, a folder in use, a folder that holds another run while
        ``resume=never``, and a disk that is full or read-only.
        """
        name, folder = config.name, config.folder
        if not _NAME.fullmatch(name):
            raise UserError(f"run.name={name!r}: use letters, digits, '.', '_' and '-'")
        if resume not in ("never", "auto"):
            raise UserError(f"resume={resume!r}: it can be never or auto")
        path = Path(folder) / name
        try:
            (path / "logs").mkdir(parents=True, exist_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
            lock = (path / "lock").open("w")
        except OSError as error:
            raise UserError(f"cannot write into {path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(f"{path} is in use by another process") from None
        try:
            if resume == "never" and _holds_a_run(path):
                raise UserError(
                    f"{path} holds a run already: go on with resume=auto, or choose another run.name"
                )
            _check_space(path)
        except UserError:
            lock.close()
            raise
        # Actors may run in another folder than this process.
        return cls(path.absolute(), lock)

    def write_config(self, text: str) -> None:
        """Keep the resolved configuration beside what it leads to."""
        (self.path / "config.yaml").write_text(text)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()


def _holds_a_run(path: Path) -> bool:
    """A run that neither logged nor saved anything came to nothing and may be started anew."""
    return (path / "metrics.jsonl").exists() or any((path / "checkpoints").glob("step-*"))


def _check_space(path: Path) -> None:
    stats = os.statvfs(path)
    free = stats.f_bavail * stats.f_frsize
    if free < _SMALLEST_FREE_BYTES:
        raise UserError(
            f"only {free >> 20} MiB are free on the disk of {path}; a run needs at least "
            f"{_SMALLEST_FREE_BYTES >> 20} MiB"
        )
