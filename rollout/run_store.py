"""The run store: an append-only log of a run, written by one process, readable by all.

A run's log is a folder of numbered files. Each file is a magic line and then frames: length (u32),
CRC-32 (u32) and the record, little endian. A writer that is killed leaves at most a torn last
frame, which readers ignore and the next writer cuts off. Damage anywhere else is an error that says
where.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from polymath.configs import ReportsReads
from polymath.errors import PolymathError
from polymath.rollout.records import Kind, Record, pack, unpack
from polymath.rollout.schema import RunStoreConfig

MAGIC = b"polymath run store 1\n"
_HEADER = struct.Struct("<II")
_LARGEST = 1 << 30
"""No record is larger; a longer length is damage."""


class RunStoreError(PolymathError):
    """The log cannot be read or written; the message names the file and the way out."""


class RunStore(ReportsReads):
    """The writer. One at a time per folder; a second one is refused.

    What ``append`` returned from survives the death of this process; what was flushed to the disk
    (``fsync_seconds``) survives the machine's. Raises ``RunStoreError``: locked, damaged, full.
    """

    def __init__(self, folder: str | os.PathLike[str], config: RunStoreConfig) -> None:
        self.folder = Path(folder)
        self._segment_bytes = int(config.segment_mb * 2**20)
        self._fsync_seconds = config.fsync_seconds
        self._synced = time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunStoreError(f"cannot open the run store {self.folder}: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RunStoreError(
                f"the run store {self.folder} has a writer already; stop that run first"
            ) from None
        self._file = -1
        try:
            files = segment_files(self.folder)
            self._index = _number(files[-1]) if files else 0
            self._open_segment()
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, kind: Kind, data: Mapping[str, Any]) -> None:
        """Append one record, stamped with the time."""
        self.append_packed([pack(Record(kind, time.time(), data))])

    def append_packed(self, payloads: Sequence[bytes]) -> None:
        """Append records that ``records.pack`` made, all or none."""
        frames = b"".join(_HEADER.pack(len(body), zlib.crc32(body)) + body for body in payloads)
        if self._file < 0:
            raise RunStoreError(f"the run store {self.folder} is closed")
        if self._end > len(MAGIC) and self._end + len(frames) > self._segment_bytes:
            self._close_segment()
            self._index += 1
            self._open_segment()
        self._write(frames)
        if 0 <= self._fsync_seconds <= time.monotonic() - self._synced:
            self.sync()

    def sync(self) -> None:
        """Flush to the disk."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def process_id(self) -> int:
        """Of the writer, once it is ready."""
        return os.getpid()

    def close(self) -> None:
        """Flush and let the next writer in. Safe to call twice."""
        if self._file >= 0:
            self._close_segment()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_segment(self) -> None:
        path = self.folder / f"{self._index:08d}.log"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        with path.open("rb") as file:
            self._end = max((end for _, end in _frames(file.read(), path, last=True)), default=0)
        if self._end < size:
            os.ftruncate(self._file, self._end)
        if self._end == 0:
            self._write(MAGIC)
            directory = os.open(self.folder, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)

    def _close_segment(self) -> None:
        self.sync()
        os.close(self._file)
        self._file = -1

    def _write(self, data: bytes) -> None:
        """Write all of it at the end, or leave the end where it was."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise RunStoreError(
                f"cannot write to the run store {self.folder}: {error.strerror}; "
                "free space there and resume the run"
            ) from error
        self._end += len(data)


def start_run_store(folder: str | os.PathLike[str], config: RunStoreConfig) -> Any:
    """The writer as a Ray actor; its methods are ``RunStore``'s, of which ``append_packed`` is the
    one to call. It takes no CPU share and is not restarted: a second writer would be refused.
    """
    import ray

    actor = ray.remote(RunStore).options(num_cpus=0, max_restarts=0)
    return actor.remote(os.fspath(folder), config)


def read(folder: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a log, oldest first. A log that is being written may be read.

    Raises ``RunStoreError`` where a record is damaged, and when there is no log.
    """
    files = segment_files(Path(folder))
    if not files:
        raise RunStoreError(f"no run store in {folder}")
    for path in files:
        data = path.read_bytes()
        for body, end in _frames(data, path, last=path == files[-1]):
            if body is not None:
                try:
                    yield unpack(body)
                except ValueError as error:
                    raise RunStoreError(f"{path} before byte {end}: {error}") from error


def segment_files(folder: Path) -> list[Path]:
    """The files of a log, oldest first."""
    return sorted(folder.glob("[0-9]*.log"), key=_number)


def _number(path: Path) -> int:
    return int(path.stem)


def _frames(data: bytes, path: Path, last: bool) -> Iterator[tuple[bytes | None, int]]:
    """(record, where it ends) of each whole frame; the magic line comes first, as None.

    The last file may end in a torn frame: one that is cut short, empty (a tail of zeros after a
    power cut), or wrong in the very last bytes. Anything else that is wrong is damage.
    """
    if not data.startswith(MAGIC):
        if last and MAGIC.startswith(data):
            return
        raise RunStoreError(f"{path} is not a run store file; move it away")
    position = len(MAGIC)
    yield None, position
    while position < len(data):
        body, end, whole = None, len(data), False
        if position + _HEADER.size <= len(data):
            length, checksum = _HEADER.unpack_from(data, position)
            end = position + _HEADER.size + length
            body = data[position + _HEADER.size : end]
            whole = length > 0 and end <= len(data) and zlib.crc32(body) == checksum
            if not whole and 0 < length <= _LARGEST and end < len(data):
                raise RunStoreError(
                    f"{path} is damaged at byte {position}; restore it, or move it and what "
                    "follows it away"
                )
        if not whole:
            if last:
                return
            raise RunStoreError(
                f"{path} ends in a torn record at byte {position}, yet a file follows"
            )
        yield body, end
        position = end
