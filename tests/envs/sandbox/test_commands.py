"""Commands: how they start, what they see, how they end, and what is left of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from polymath.envs.sandbox.base import ExecStatus, SandboxError, SandboxSpec
from polymath.envs.types import Limits


def test_a_string_is_bash_and_a_list_is_a_program(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        result = await sandbox.exec("shopt -q login_shell; echo ${BASH_VERSION:0:1}; exit 7")
        assert (result.status, result.exit_code) == (ExecStatus.EXITED, 7)
        assert result.output.strip().isdigit()
        result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", ""])
        assert (result.exit_code, result.output) == (0, "a b|$HOME||")

    inside(work)


def test_both_streams_arrive_in_the_order_of_writing(shell: Any) -> None:
    result = shell("for i in 1 2 3; do echo out$i; echo err$i >&2; done")
    assert result.output == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"
    assert result.total_bytes == len(result.output)


def test_environment_and_place_are_fixed(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        result = await sandbox.exec("echo $PWD $HOME $TZ $LC_ALL; id -un; date +%Z; locale charmap")
        assert result.output.splitlines() == [
            "/workspace /workspace UTC C.UTF-8",
            "agent",
            "UTC",
            "UTF-8",
        ]
        result = await sandbox.exec("echo $A $B; pwd", cwd="/tmp", environment={"B": "call"})
        assert result.output == "spec call\n/tmp\n"

    inside(work, SandboxSpec(environment={"A": "spec", "B": "spec"}))


def test_standard_input_is_given_whole_and_empty_otherwise(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        assert (await sandbox.exec("wc -c", stdin=b"x" * 1_000_000)).output == "1000000\n"
        assert (await sandbox.exec("cat")).output == ""

    inside(work)


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        (["no-such-program"], {}, "no such command"),
        (["/workspace/none"], {}, "No such file"),
        (["/etc/passwd"], {}, "Permission denied"),
        (["/workspace"], {}, "Permission denied"),
        ("echo", {"cwd": "/nowhere"}, "/nowhere: No such file"),
        ("echo a\0b", {}, "NUL"),
        ("true " + "x" * 200_000, {}, "Argument list too long"),
        ("x" * 3_000_000, {}, "longer than"),
        ([], {}, "no command"),
        ("true", {"environment": {"A=B": "c"}}, "names of variables"),
    ],
)
def test_what_cannot_start_says_why_and_is_no_fault_of_ours(
    inside: Any, command: Any, options: Any, why: str
) -> None:
    async def work(sandbox: Any) -> None:
        result = await sandbox.exec(command, **options)
        assert (result.status, result.exit_code) == (ExecStatus.NOT_STARTED, None)
        assert why in result.output
        assert (await sandbox.exec("echo on")).output == "on\n"

    inside(work)


def test_text_that_no_encoding_knows_passes_through(shell: Any) -> None:
    assert shell(["printf", "%s", "caf\u00e9 \udcff"]).output == "caf\u00e9 \ufffd"
    assert shell(["printf", "%s", "caf\u00e9 \ud800"]).output == "caf\u00e9 ?"
    assert shell(r"printf 'a\xff\0b'").output == "a\ufffd\0b"


@pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
def test_death_by_signal_has_the_code_that_shells_give(shell: Any, signal: str, code: int) -> None:
    result = shell(f"kill -{signal} $$")
    assert (result.status, result.exit_code) == (ExecStatus.EXITED, code)


def test_broken_pipes_end_writers_as_usual(shell: Any) -> None:
    result = shell("yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert result.output == "y\n141\n"


def test_time_is_up_even_for_those_who_ignore_signals(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        stubborn = "trap '' TERM INT HUP QUIT; echo began; while :; do sleep 100; done"
        result = await sandbox.exec(stubborn, timeout=0.3)
        assert (result.status, result.exit_code) == (ExecStatus.TIMEOUT, None)
        assert result.output == "began\n"
        assert 0.3 <= result.seconds < 10
        assert (await sandbox.exec("pgrep -c sleep; echo on")).output == "0\non\n"

    inside(work)


def test_output_beyond_the_cap_is_counted_not_kept(shell: Any) -> None:
    result = shell("head -c 100000 /dev/zero | tr '\\0' x", output_bytes=10)
    assert (result.status, result.output, result.total_bytes) == (
        ExecStatus.EXITED,
        "x" * 10,
        100_000,
    )


def test_endless_output_is_stopped(shell: Any) -> None:
    result = shell("yes", timeout=30)
    assert (result.status, result.exit_code) == (ExecStatus.OUTPUT_LIMIT, None)
    assert 4 << 20 < result.total_bytes < 8 << 20
    assert len(result.output) == 16 << 10


def test_defaults_come_from_the_spec(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        assert (await sandbox.exec("sleep 60")).status is ExecStatus.TIMEOUT
        assert (await sandbox.exec("echo 123456789")).output == "1234"

    inside(work, SandboxSpec(limits=Limits(command_seconds=0.2, output_bytes=4)))


def test_processes_left_behind_are_dead_when_the_call_returns(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        result = await sandbox.exec(
            "sleep 987 & (setsid nohup sleep 986 >/dev/null 2>&1 &) ; (setsid sleep 985 &) ; echo on"
        )
        assert (result.status, result.output) == (ExecStatus.EXITED, "on\n")
        left = "for d in /proc/[0-9]*; do tr '\\0' ' ' <$d/cmdline; echo; done | grep -c '^sleep'"
        assert (await sandbox.exec(left)).output == "0\n"

    inside(work)


def test_a_command_that_closes_its_output_still_runs_on(shell: Any) -> None:
    result = shell("exec >&- 2>&-; sleep 0.2; exit 3")
    assert (result.status, result.exit_code, result.output) == (ExecStatus.EXITED, 3, "")


def test_orphans_do_not_use_up_the_processes(shell: Any) -> None:
    result = shell("for i in $(seq 300); do (true &) ; done; echo done", timeout=20)
    assert result.output == "done\n"


def test_calls_are_served_in_turn(inside: Any) -> None:
    async def work(sandbox: Any) -> None:
        results = await asyncio.gather(*(sandbox.exec(f"echo {i} >> log") for i in range(8)))
        assert all(result.exit_code == 0 for result in results)
        assert (await sandbox.exec("wc -l < log")).output == "8\n"

    inside(work)


def test_a_cancelled_call_ends_the_sandbox(inside: Any) -> None:
    """The answer to it would be taken for the next one's."""

    async def work(sandbox: Any) -> None:
        call = asyncio.create_task(sandbox.exec("sleep 60"))
        await sandbox_is_busy(sandbox)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(SandboxError, match="cancelled"):
            await sandbox.exec("true")

    inside(work)


async def sandbox_is_busy(sandbox: Any) -> None:
    deadline = time.monotonic() + 10
    while not sandbox._lock.locked():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
