"""Files in and out: exact bytes, below the workspace, and no way round through the agent's tricks."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymath.envs.sandbox.base import SandboxSpec, WorkspaceError
from polymath.envs.types import Limits

_NAME = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40
).filter(lambda name: name not in (".", ".."))
_PATH = st.lists(_NAME, min_size=1, max_size=3).map("/".join)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(_PATH.map(lambda path: "d/" + path), st.binary(max_size=5000), max_size=5))
def test_what_is_put_is_got(inside: Any, files: dict[str, bytes]) -> None:
    folders = {path.rsplit("/", n)[0] for path in files for n in range(1, path.count("/") + 1)}
    files = {path: content for path, content in files.items() if path not in folders}

    async def work(sandbox: Any) -> None:
        await sandbox.put(files)
        found, failed = await sandbox.get(list(files))
        assert (found, failed) == (files, {})

    inside(work)


def test_many_megabytes_travel_in_parcels(inside: Any) -> None:
    files = {f"f{i}": os.urandom(1 << 20) * 30 for i in range(3)}

    async def work(sandbox: Any) -> None:
        await sandbox.put(files)
        found, failed = await sandbox.get(["f0", "f1"], max_bytes=32 << 20)
        assert found == {"f0": files["f0"], "f1": files["f1"]} and not failed
        assert (await sandbox.exec("cat f2 | wc -c")).output == f"{30 << 20}\n"

    inside(work)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".", "a\0b", "/workspace/a"])
def test_paths_outside_are_refused(inside: Any, path: str) -> None:
    async def work(sandbox: Any) -> None:
        with pytest.raises(ValueError, match="below the workspace"):
            await sandbox.put({path: b"x"})
        found, failed = await sandbox.get([path])
        assert not found and "below the workspace" in failed[path]

    inside(work)


_TRICKS = """
ln -s /etc/passwd link; ln -s / root; ln -s /etc etc; ln -s loop loop
mkfifo fifo; mkdir folder; echo secret > closed; chmod 000 closed
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
ln -s /dev/zero zero; ln -s /proc/self/environ environ
truncate -s 100G sparse 2>/dev/null; head -c 3000 /dev/zero > large; echo fine > fine; ln fine hard
"""


def test_only_regular_files_come_out_and_each_other_has_its_reason(inside: Any) -> None:
    expected = {
        "link": "link",
        "root/etc/passwd": "link",
        "etc/passwd": "link",
        "loop": "link",
        "zero": "link",
        "environ": "link",
        "fifo": "not a regular file",
        "folder": "not a regular file",
        "socket": "No such device",
        "closed": "Permission denied",
        "large": "larger than 1000 bytes",
        "fine/below": "stands in the way",
        "missing": "No such file",
    }

    async def work(sandbox: Any) -> None:
        await sandbox.exec(_TRICKS)
        found, failed = await sandbox.get([*expected, "fine", "hard"], max_bytes=1000)
        assert found == {"fine": b"fine\n", "hard": b"fine\n"}
        assert failed.keys() == expected.keys()
        for path, reason in expected.items():
            assert reason in failed[path], path

    inside(work)


def test_put_replaces_what_the_agent_planted_and_follows_nothing(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        await sandbox.exec("echo old > target; ln -s target link; mkfifo fifo; ln target hard")
        await sandbox.put({"link": b"new", "fifo": b"new", "hard": b"new"})
        found, _ = await sandbox.get(["target", "link", "fifo", "hard"])
        assert found == {"target": b"old\n", "link": b"new", "fifo": b"new", "hard": b"new"}
        await sandbox.exec("mkdir outside; ln -s /tmp/aside away; mkdir /tmp/aside")
        with pytest.raises(WorkspaceError, match="away/file"):
            await sandbox.put({"away/file": b"x"})
        assert (await sandbox.exec("ls /tmp/aside")).output == ""

    inside(work)


def test_a_full_workspace_is_an_error_of_its_own_and_passes(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        with pytest.raises(WorkspaceError, match="b cannot be written: No space left"):
            await sandbox.put({"a": b"x" * 700_000, "b": b"x" * 700_000})
        assert (await sandbox.exec("rm a b; echo on")).output == "on\n"
        await sandbox.put({"small": b"x"})

    inside(work, SandboxSpec(limits=Limits(workspace_bytes=1 << 20)))
