"""The system-call filter, run by a small interpreter of classic BPF for both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from polymath.envs.sandbox import seccomp

ALLOW, KILL = "allow", "kill"
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From the tables of each architecture: x86_64, aarch64.
CALLS = {
    "read": (0, 63),
    "execve": (59, 221),
    "mount": (165, 40),
    "ptrace": (101, 117),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "memfd_create": (319, 279),
    "kill": (62, 129),
}


def run(program: bytes, arch: int, number: int, *arguments: int) -> str | int:
    """The filter's word on one call: allow, kill, or an errno."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    at = accumulator = 0
    for _ in range(len(code)):
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x06:
            if value == 0x7FFF0000:
                return ALLOW
            return KILL if value == 0x80000000 else value & 0xFFFF
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[operation]
            at += if_true if holds else if_false
    raise AssertionError("the program does not end")


@pytest.fixture(params=["x86_64", "aarch64"])
def ask(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    machine = request.param
    column = list(ARCH).index(machine)
    program = seccomp.build(memory_is_bounded=True, machine=machine)

    def ask(name: str, *arguments: int, watched: bool = False) -> str | int:
        chosen = seccomp.build(memory_is_bounded=False, machine=machine) if watched else program
        return run(chosen, ARCH[machine], CALLS[name][column], *arguments)

    return ask


def test_ordinary_calls_pass(ask) -> None:  # type: ignore[no-untyped-def]
    assert {ask(name) for name in ("read", "execve", "kill", "memfd_create")} == {ALLOW}


def test_denied_calls(ask) -> None:  # type: ignore[no-untyped-def]
    names = ("mount", "ptrace", "unshare", "bpf", "keyctl", "setns", "io_uring_setup")
    assert {ask(name) for name in names} == {errno.EPERM}


def test_threads_and_forks_but_no_namespaces(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask("clone", 17) == ALLOW
    assert ask("clone", 0x003D0F00) == ALLOW  # what pthread_create asks for
    for flag in (
        0x20000,
        0x2000000,
        0x4000000,
        0x8000000,
        0x10000000,
        0x20000000,
        0x40000000,
        0x80,
    ):
        assert ask("clone", flag | 17) == errno.EPERM
    assert ask("clone3") == errno.ENOSYS


def test_socket_families_are_an_allow_list(ask) -> None:  # type: ignore[no-untyped-def]
    for call in ("socket", "socketpair"):
        allowed = [family for family in range(50) if ask(call, family) == ALLOW]
        assert allowed == [1, 2, 10]
        assert ask(call, 40) == errno.EAFNOSUPPORT


def test_terminals_cannot_be_fed(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask("ioctl", 0, 0x5412) == errno.EPERM
    assert ask("ioctl", 0, 0x541C) == errno.EPERM
    assert ask("ioctl", 0, 0x5401) == ALLOW


def test_limits_and_priorities_of_others_are_out_of_reach(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask("prlimit64", 0, 7) == ALLOW
    assert ask("prlimit64", 1, 7) == errno.EPERM
    assert ask("setpriority", 0, 0, 5) == ALLOW
    assert ask("setpriority", 0, 1, 5) == errno.EPERM
    assert ask("setpriority", 2, 0, 5) == errno.EPERM


def test_uncounted_memory_is_denied_without_a_control_group(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask("memfd_create", watched=True) == errno.EPERM


def test_other_architectures_are_killed_or_missing() -> None:
    program = seccomp.build(memory_is_bounded=True, machine="x86_64")
    assert run(program, 0x40000003, 3) == KILL  # i386
    assert run(program, ARCH["x86_64"], 0x40000000 | 41, 40) == errno.ENOSYS  # x32
    assert run(program, ARCH["aarch64"], 63) == KILL
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build(memory_is_bounded=True, machine="riscv64")


def test_filters_fit_the_kernel() -> None:
    for machine in ARCH:
        assert len(seccomp.build(memory_is_bounded=False, machine=machine)) // 8 <= 4096
