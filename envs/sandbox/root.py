"""What a sandbox sees: bubblewrap's arguments for namespaces, file systems and the first process.

The base image is the host's own programs and libraries, read-only, under an /etc of a few public
files. Everything writable is a sized tmpfs.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polymath.envs.sandbox.base import WORKSPACE

SHIM = "/.shim"
"""Where the compiled shim lies inside."""

_SYSTEM_PYTHON = Path("/usr/bin/python3")
_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What an administrator put there is not ours to show.
_HIDDEN = ("/usr/local", "/usr/src")
_PUBLIC = ("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache", "/etc/mime.types")
_ETC = {
    "/etc/passwd": "agent:x:1000:1000:agent:/workspace:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    "/etc/group": "agent:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_MODULES = ("protocol", "workspace", "shim")  # in the order in which they need each other
_BOOT = f"""\
import marshal, sys
with open("{SHIM}", "rb") as file:
    codes = marshal.load(file)
for name, code in zip({_MODULES}, codes):
    module = type(sys)("polymath.envs.sandbox." + name)
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
module.main(int(sys.argv[1]))
"""
_COMPILE = """\
import marshal, sys
codes = []
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        codes.append(compile(file.read(), path.rpartition("/")[2], "exec", optimize=2))
sys.stdout.buffer.write(marshal.dumps(codes))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python inside. ``prefix`` is the folder to bind for it, None when /usr has it."""

    executable: str
    prefix: str | None


def interpreter() -> Interpreter:
    """The system's Python, else the one that runs this."""
    if _SYSTEM_PYTHON.exists() and Path("/usr/local") not in _SYSTEM_PYTHON.resolve().parents:
        return Interpreter(str(_SYSTEM_PYTHON), None)
    prefix = os.path.realpath(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Interpreter(f"{prefix}/bin/{version}", None if prefix == "/usr" else prefix)


def interpreter_problem(python: Interpreter) -> str | None:
    """Why sandboxes cannot use this Python, with the fix; as root they run as other users."""
    if python.prefix is None or os.geteuid() != 0:
        return None
    folder = Path(python.prefix)
    closed = [part for part in (folder, *folder.parents) if not part.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return None
    return (
        f"sandboxes need a Python that other users may run, and {closed[-1]} is closed to them; "
        "install the system's (`apt-get install python3`, /usr/bin/python3)"
    )


def compile_command(python: Interpreter) -> list[str]:
    """A command that prints the compiled shim; the version must be that of the Python inside."""
    folder = Path(__file__).resolve().parent
    sources = [str(folder / f"{name}.py") for name in _MODULES]
    return [python.executable, "-I", "-S", "-c", _COMPILE, *sources]


def environment(python: Interpreter) -> dict[str, str]:
    """The environment of every command; a spec and a call may add to it."""
    folders = ["/opt/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    if python.prefix:
        folders.insert(1, f"{python.prefix}/bin")
    return {
        "PATH": ":".join(folders),
        "HOME": WORKSPACE,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": "/tmp",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def isolation() -> list[str]:
    """New namespaces of every kind that matters.

    The first process is the namespace's root until it has bounded the inodes of the writable file
    systems; see ``shim``. It ends when its socket closes, which is how a sandbox dies with its host:
    bubblewrap's ``--die-with-parent`` leaves a process for ever when the host dies just after
    bubblewrap has forked.
    """
    unshare = [f"--unshare-{kind}" for kind in ("user", "pid", "net", "ipc", "uts")]
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETFCAP"]
    return [
        *unshare,
        *("--hostname", "sandbox", "--uid", "0", "--gid", "0"),
        *rights,
        *("--new-session", "--as-pid-1", "--clearenv"),
    ]


def file_systems(
    python: Interpreter,
    data: Mapping[str, int],
    sizes: Mapping[str, int],
) -> list[str]:
    """The mounts. ``data`` maps files to descriptors with their content, ``sizes`` writable folders
    to bytes, /dev/shm among them."""
    arguments: list[str] = []
    for tree in map(Path, _TREES):
        if tree.is_symlink():
            arguments += ("--symlink", os.readlink(tree), str(tree))
        elif tree.is_dir():
            arguments += ("--ro-bind", str(tree), str(tree))
    in_use = Path(python.prefix or "/usr/bin")
    for hidden in map(Path, _HIDDEN):
        if hidden.is_dir() and hidden != in_use and hidden not in in_use.parents:
            arguments += ("--tmpfs", str(hidden), "--remount-ro", str(hidden))
    if python.prefix and not python.prefix.startswith("/usr/local"):
        for parent in reversed(Path(python.prefix).parents[:-1]):
            arguments += ("--perms", "0755", "--dir", str(parent))
        arguments += ("--ro-bind", python.prefix, python.prefix)
    for public in _PUBLIC:
        arguments += ("--ro-bind-try", public, public)
    for name in ("python", "python3"):
        arguments += ("--symlink", python.executable, f"/opt/bin/{name}")
    for path, descriptor in data.items():
        arguments += ("--perms", "0444", "--ro-bind-data", str(descriptor), path)
    arguments += ("--proc", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp")
    for path, size in sizes.items():
        mode = "0755" if path == WORKSPACE else "1777"
        arguments += ("--perms", mode, "--size", str(size), "--tmpfs", path)
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]


def mount_options(path: str, size: int, inodes: int) -> str:
    """The options with which the shim mounts a writable folder again, now with its inodes bounded."""
    return f"size={size},nr_inodes={inodes},mode={'755' if path == WORKSPACE else '1777'}"


def files(shim: bytes) -> dict[str, bytes]:
    """The files that are made for a sandbox rather than taken from the host."""
    return {SHIM: shim, **{path: text.encode() for path, text in _ETC.items()}}


def first_process(python: Interpreter, control: int) -> list[str]:
    """The shim's command line; ``control`` is the descriptor of its socket."""
    return [python.executable, "-I", "-S", "-c", _BOOT, str(control)]
