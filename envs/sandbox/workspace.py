"""Files of the workspace, written and read by the shim inside the sandbox.

Whatever the agent planted, links, FIFOs, devices, sockets, is never followed and never waited for:
paths are walked folder by folder with open descriptors, and only regular files are read.
"""

from __future__ import annotations

import errno
import os
import stat

from polymath.envs.sandbox.protocol import MAX_FILES

TYPE_CHECKING = False  # type checkers know the name; ``typing`` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

WORKSPACE = b"/workspace"
PLACES = (WORKSPACE, b"/tmp", b"/dev/shm")
"""The writable file systems."""


def put(files: dict[bytes, bytes]) -> dict[bytes, Any]:
    """Write files; the reply names those that could not be written, with the reason."""
    failed: dict[bytes, bytes] = {}
    for path, content in files.items():
        try:
            _write(path, content)
        except OSError as error:
            failed[path] = why(error)
    return {b"failed": failed}


def _write(path: bytes, content: bytes) -> None:
    folder, name = _walk(path, create=True)
    try:
        # A fresh file: what stands there, a link or a FIFO say, is replaced and never followed.
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(name, flags, 0o644, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def read(paths: list[bytes], max_bytes: int) -> dict[bytes, Any]:
    """Read regular files; the reply names the others, with the reason."""
    found: dict[bytes, bytes] = {}
    failed: dict[bytes, bytes] = {}
    left = MAX_FILES
    for path in paths:
        try:
            found[path] = _read(path, min(max_bytes, left))
            left -= len(found[path])
        except OSError as error:
            failed[path] = why(error)
    return {b"files": found, b"failed": failed}


def _read(path: bytes, max_bytes: int) -> bytes:
    folder, name = _walk(path, create=False)
    try:
        # Not blocking: opening a FIFO would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = bytearray()
        while len(content) <= max_bytes:
            data = os.read(descriptor, min(1 << 20, max_bytes + 1 - len(content)))
            if not data:
                return bytes(content)
            content += data
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
    finally:
        os.close(descriptor)


def why(error: OSError) -> bytes:
    """An error as a reason for people and models."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return b"a link, or not a folder, stands in the way"
    return (error.strerror or os.strerror(error.errno or 0)).encode()


def _walk(path: bytes, create: bool) -> tuple[int, bytes]:
    """The open folder that holds ``path``'s last part, and that part. Follows no link anywhere."""
    *parents, name = path.split(b"/")
    if path.startswith(b"/") or any(part in (b"", b".", b"..") for part in (*parents, name)):
        raise OSError(errno.EINVAL, "not a plain path below the workspace")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    folder = os.open(WORKSPACE, flags)
    try:
        for part in parents:
            if create:
                try:
                    os.mkdir(part, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
            inner = os.open(part, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
    except OSError:
        os.close(folder)
        raise
    return folder, name
