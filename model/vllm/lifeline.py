"""Child processes of an engine end when the process that owns the engine ends.

vLLM runs its engine core in a process of its own. Whoever starts an engine writes its process id
into ``OWNER``; each vLLM process that inherits it watches that id and leaves when it is gone, even
if the owner was killed without a chance to clean up.
"""

from __future__ import annotations

import os
import select
import threading
import time

OWNER = "POLYMATH_ENGINE_OWNER"
_POLL_SECONDS = 0.5


def own() -> None:
    """Make this process the owner of the engines that it will start."""
    os.environ[OWNER] = str(os.getpid())


def follow() -> None:
    """Leave with the owner, if there is one and it is not this process."""
    owner = os.environ.get(OWNER)
    if owner is None or int(owner) == os.getpid():
        return
    threading.Thread(target=_leave_with, args=(int(owner),), daemon=True, name="lifeline").start()


def _leave_with(owner: int) -> None:
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # kernels before 5.3
        while _alive(owner):
            time.sleep(_POLL_SECONDS)
        os._exit(1)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os._exit(1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
