"""The system-call filter, assembled by hand as classic BPF.

A deny list, since the programs of a task may be anything; namespaces, tracing, mounting, kernel
modules, keys, clocks and io_uring are out, and sockets come from an allow-list of families. Numbers
are from the kernel's ``unistd.h`` of each architecture.
"""

from __future__ import annotations

import errno
import platform
import struct

# Offsets in struct seccomp_data, and what a filter may return (linux/seccomp.h).
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

# Instruction codes (linux/bpf_common.h): load a word, jump on ==, >=, any bit, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_ARCHITECTURES = ("x86_64", "aarch64")

# clone(2): NEWTIME NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET.
_NEW_NAMESPACES = 0x00000080 | 0x00020000 | 0x7E000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10

# Name: (x86_64, aarch64); None where the architecture lacks it.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
}

# Without a memory cgroup nothing would bound what these allocate.
_UNBOUNDED_MEMORY: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
}

# Allowed on the caller only (argument -> 0): pid 1 has the same uid and must stay out of reach.
_SELF_ONLY: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "prlimit64": ((302, 261), (0,)),
    "sched_setparam": ((142, 118), (0,)),
    "sched_setscheduler": ((144, 119), (0,)),
    "sched_setattr": ((314, 274), (0,)),
    "sched_setaffinity": ((203, 122), (0,)),
    "setpriority": ((141, 140), (0, 1)),
    "ioprio_set": ((251, 30), (1,)),
}

_CLONE = (56, 220)
_CLONE3 = 435
_SOCKETS = ((41, 198), (53, 199))  # socket, socketpair
_IOCTL = (16, 29)


def supported() -> bool:
    """Whether this machine's architecture has a filter."""
    return platform.machine() in _ARCHITECTURES


def build(*, memory_is_bounded: bool, machine: str | None = None) -> bytes:
    """The filter for an architecture (this machine's by default) as an array of sock_filter.

    ``memory_is_bounded`` says that a memory cgroup counts shared memory; without one, calls that
    allocate it are denied as well. Raises ``ValueError`` for other architectures.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system-call filter for {machine}; there are {_ARCHITECTURES}")
    column = _ARCHITECTURES.index(machine)
    code = [
        _op(_LOAD, _ARCH),
        _op(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32_BIT, 0, 1), _refuse(errno.ENOSYS)]
    # ENOSYS makes the C library fall back to clone, whose flags a filter can see.
    code += [_op(_EQUAL, _CLONE3, 0, 1), _refuse(errno.ENOSYS)]
    code += _on(_CLONE[column], 0, [_op(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM)])
    code += _on(
        _IOCTL[column],
        1,
        [_op(_EQUAL, _TIOCSTI, 1, 0), _op(_EQUAL, _TIOCLINUX, 0, 1), _refuse(errno.EPERM)],
    )
    for numbers in _SOCKETS:
        families = [
            _op(_EQUAL, _AF_UNIX, 3, 0),
            _op(_EQUAL, _AF_INET, 2, 0),
            _op(_EQUAL, _AF_INET6, 1, 0),
            _refuse(errno.EAFNOSUPPORT),
        ]
        code += _on(numbers[column], 0, families)
    for numbers, arguments in _SELF_ONLY.values():
        for argument in arguments:
            itself = [_op(_EQUAL, 0, 1, 0), _refuse(errno.EPERM)]
            code += _on(numbers[column], argument, itself)
    denied = _DENIED if memory_is_bounded else _DENIED | _UNBOUNDED_MEMORY
    for pair in denied.values():
        number = pair[column]
        if number is not None:
            code += [_op(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    code.append(_op(_RETURN, _ALLOW))
    return b"".join(code)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _op(_RETURN, _ERRNO | error)


def _on(number: int, argument: int, body: list[bytes]) -> list[bytes]:
    """``body`` looks at the low word of an argument of one call; falling out of it goes on."""
    inside = [_op(_LOAD, _ARGUMENTS + 8 * argument), *body, _op(_LOAD, _NUMBER)]
    return [_op(_EQUAL, number, 0, len(inside)), *inside]
