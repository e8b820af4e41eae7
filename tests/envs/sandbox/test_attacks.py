"""What an agent tries, one named test each. The suite is run as root and as a normal user."""

from __future__ import annotations

import os
import socket
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymath.envs.sandbox.base import ExecStatus, SandboxSpec
from polymath.envs.types import Limits

SMALL = SandboxSpec(limits=Limits(memory_bytes=320 << 20, workspace_bytes=8 << 20, processes=32))
_HUNG = (ExecStatus.TIMEOUT, ExecStatus.EXITED)


def python(code: str) -> list[str]:
    return ["python3", "-c", textwrap.dedent(code)]


async def works(sandbox: Any) -> None:
    """The sandbox is as good as new for the next command."""
    result = await sandbox.exec("echo on; pgrep -c .", timeout=20)
    assert result.output.splitlines()[0] == "on"


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user outside."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def attack(inside: Any, command: Any, *, timeout: float = 20, spec: SandboxSpec = SMALL) -> Any:
    """Run it, see that the sandbox survives, return its result."""

    async def work(sandbox: Any) -> Any:
        result = await sandbox.exec(command, timeout=timeout)
        await works(sandbox)
        return result

    return inside(work, spec)


class TestLimits:
    def test_fork_bomb(self, inside: Any) -> None:
        bomb = "bomb() { bomb | bomb & }; bomb; sleep 100"
        assert attack(inside, bomb, timeout=1).status in _HUNG

    def test_fork_bomb_that_never_gives_up(self, inside: Any) -> None:
        code = """
            import os
            while True:
                try: os.fork()
                except OSError: pass
        """
        assert attack(inside, python(code), timeout=1).status is ExecStatus.TIMEOUT

    def test_processes_are_counted(self, inside: Any) -> None:
        code = """
            import os, time
            made = 0
            try:
                while made < 100:
                    if os.fork() == 0: time.sleep(60)
                    made += 1
            except OSError as error: print(made, error.strerror)
        """
        made, _, why = attack(inside, python(code)).output.partition(" ")
        assert why.strip() == "Resource temporarily unavailable"
        assert 28 <= int(made) <= 33

    def test_memory_hog(self, inside: Any) -> None:
        hog = python("x = []\nwhile True: x.append(b'x' * (4 << 20))")
        result = attack(inside, hog)
        assert result.status is ExecStatus.EXITED
        assert result.exit_code == 137 or "MemoryError" in result.output

    def test_memory_hog_of_many_processes(self, inside: Any) -> None:
        code = """
            import os
            for _ in range(3): os.fork()
            x = []
            while True: x.append(b'x' * (2 << 20))
        """
        attack(inside, python(code), timeout=3)

    def test_memory_hog_that_shields_itself(self, inside: Any) -> None:
        code = """
            import os
            try: open('/proc/self/oom_score_adj', 'w').write('-1000')
            except OSError: pass
            try: open('/proc/1/oom_score_adj', 'w').write('1000')
            except OSError as error: print(error.strerror, flush=True)
            for _ in range(4): os.fork()
            x = []
            while True: x.append(b'x' * (1 << 20))
        """
        result = attack(inside, python(code), timeout=3)
        assert "Read-only file system" in result.output

    def test_memory_that_belongs_to_no_process(self, inside: Any) -> None:
        """Anonymous files and shared segments outlive their maker or count for nobody."""
        code = """
            import os, ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            for _ in range(100):
                try: descriptor = os.memfd_create('x')
                except OSError: break
                for _ in range(8): os.write(descriptor, b'x' * (1 << 20))
            for _ in range(100):
                segment = libc.shmget(0, 8 << 20, 0o1600)
                libc.shmat.restype = ctypes.c_void_p
                if segment < 0: break
                ctypes.memset(libc.shmat(segment, None, 0), 1, 8 << 20)
            print('got all')
        """
        result = attack(inside, python(code))
        assert result.exit_code == 137 or result.output == "got all\n"

    @pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
    def test_disk_fill(self, inside: Any, place: str) -> None:
        fill = f"dd if=/dev/zero of={place}/big bs=1M count=500; stat -c %s {place}/big; rm {place}/big"
        result = attack(inside, fill)
        assert "No space left" in result.output
        assert int(result.output.splitlines()[-1]) <= 64 << 20

    @pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
    def test_inode_fill(self, inside: Any, place: str) -> None:
        code = f"""
            import os
            made = 0
            try:
                while made < 100_000:
                    os.mkdir(f"{place}/{{made}}")
                    made += 1
            except OSError as error: print(made, error.strerror)
        """
        made, _, why = attack(inside, python(code)).output.partition(" ")
        assert why.strip() == "No space left on device"
        assert 1900 <= int(made) < 2000

    def test_nothing_else_can_be_written(self, inside: Any) -> None:
        places = (
            "find / /dev -xdev -type d 2>/dev/null; ls -d /proc /usr /usr/lib /usr/local /dev/pts"
        )
        write = f"for d in $({places}); do touch $d/x 2>/dev/null && echo $d; done; true"
        assert set(attack(inside, write).output.split()) == {
            "/workspace",
            "/tmp",
            "/dev/shm",
        }

    def test_endless_output(self, inside: Any) -> None:
        assert attack(inside, "cat /dev/zero").status is ExecStatus.OUTPUT_LIMIT

    def test_ignored_signals(self, inside: Any) -> None:
        code = """
            import signal, time
            for number in range(1, 65):
                try: signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError): pass
            time.sleep(100)
        """
        assert attack(inside, python(code), timeout=0.5).status is ExecStatus.TIMEOUT


class TestHost:
    def test_host_files_are_not_there(self, inside: Any, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("TOPSECRET")
        for folder in (tmp_path, *tmp_path.parents[:-1]):
            if os.access(folder, os.W_OK) and folder != Path("/tmp"):
                folder.chmod(0o755)
        tries = f"cat {secret} /etc/shadow /proc/1/root{secret} /proc/*/root{secret}; ls /home /root /sys"
        result = attack(inside, tries)
        assert "TOPSECRET" not in result.output and "root:" not in result.output
        assert result.exit_code != 0

    def test_environment_of_the_host_is_not_there(
        self, inside: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOST_TOKEN", "TOPSECRET")
        result = attack(inside, "env; cat /proc/*/environ | tr '\\0' '\\n'")
        assert "HOME=/workspace" in result.output
        assert "TOPSECRET" not in result.output

    def test_processes_of_the_host_are_out_of_reach(
        self, inside: Any, victim: subprocess.Popen[bytes]
    ) -> None:
        tries = f"kill -9 {victim.pid} {os.getpid()}; ls /proc/{victim.pid}; kill -9 -1"
        attack(inside, tries)
        assert victim.poll() is None

    def test_network_is_empty(self, inside: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            code = f"""
                import socket
                for address in (("127.0.0.1", {port}), ("8.8.8.8", 53)):
                    try: socket.create_connection(address, 2); print("CONNECTED")
                    except OSError as error: print(error.errno)
            """
            assert attack(inside, python(code)).output.split() == ["111", "101"]

    def test_abstract_sockets_of_the_host_are_out_of_reach(self, inside: Any) -> None:
        name = f"polymath-{uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"\0{name}")
            server.listen()
            code = rf"""
                import socket
                try: socket.socket(socket.AF_UNIX).connect("\0{name}"); print("CONNECTED")
                except OSError as error: print(error.errno)
            """
            assert attack(inside, python(code)).output == "111\n"

    def test_own_loopback_works(self, inside: Any) -> None:
        code = """
            import socket
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_UNIX, "here")):
                server = socket.socket(family)
                server.bind((address, 0) if family == socket.AF_INET else address)
                server.listen()
                socket.socket(family).connect(server.getsockname())
            socket.socketpair()
            print("connected")
        """
        assert attack(inside, python(code)).output == "connected\n"


class TestKernel:
    @pytest.mark.parametrize(
        ("family", "kind"),
        [("AF_VSOCK", 1), ("AF_NETLINK", 3), ("AF_PACKET", 3), ("AF_ALG", 5), ("AF_TIPC", 4)],
    )
    def test_socket_families(self, inside: Any, family: str, kind: int) -> None:
        code = f"""
            import socket
            for make in (socket.socket, socket.socketpair):
                try: make(socket.{family}, {kind}); print("MADE")
                except OSError as error: print(error.errno)
        """
        assert attack(inside, python(code)).output.split() == ["97", "97"]

    def test_raw_sockets(self, inside: Any) -> None:
        code = """
            import socket
            try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print("MADE")
            except OSError as error: print(error.errno)
        """
        assert attack(inside, python(code)).output == "1\n"

    @pytest.mark.parametrize(
        "command",
        [
            "unshare -U true",
            "unshare -m true",
            "unshare -n true",
            "unshare -Urpf true",
            "nsenter -t 1 -m true",
            "mount -t tmpfs none /workspace",
            "mount -o remount,rw /usr",
            "umount /tmp",
            "chroot / true",
            "mknod /workspace/device b 254 0",
            "hostname other",
            "date -s 2001-01-01",
            "dmesg",
            "su -c id",
            "chown 0:0 /workspace",
            "echo 1 > /proc/sys/vm/drop_caches",
            "echo c > /proc/sysrq-trigger",
            "head -c 1 /proc/kcore",
            "head -c 1 /dev/mem",
            "prlimit --pid 1 --nofile=1",
            "renice -n 19 -p 1",
            "taskset -p 1 1",
            "chrt -i -p 0 1",
            "ionice -c 3 -p 1",
        ],
    )
    def test_privileged_calls_fail(self, inside: Any, command: str) -> None:
        result = attack(inside, f"{command} < /dev/null")
        assert result.exit_code not in (0, 127), result.output

    def test_namespaces_by_system_call(self, inside: Any) -> None:
        code = """
            import ctypes, os, platform
            libc = ctypes.CDLL(None, use_errno=True)
            clone, clone3 = {"x86_64": 56, "aarch64": 220}[platform.machine()], 435
            for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x2000000, 0x80):
                for call in (lambda: libc.unshare(flag), lambda: libc.syscall(clone, flag | 17, 0, 0, 0, 0)):
                    result = call()
                    if result == 0 and os.getppid() != 1: os._exit(0)
                    print(result, ctypes.get_errno())
            print(libc.syscall(clone3, None, 0), ctypes.get_errno())
        """
        lines = attack(inside, python(code)).output.splitlines()
        assert lines == ["-1 1"] * 12 + ["-1 38"]

    def test_setuid_programs_give_nothing(self, inside: Any) -> None:
        result = attack(
            inside,
            "cp /usr/bin/id .; chmod u+s id; ./id -u; grep NoNewPrivs /proc/self/status; "
            "grep CapBnd /proc/self/status; grep -c ' /usr .*nosuid' /proc/self/mounts",
        )
        uid, privileges, bounding, nosuid = result.output.splitlines()
        assert uid == "1000" and privileges.split()[1] == "1"
        assert int(bounding.split()[1], 16) == 0 and nosuid == "1"


class TestShim:
    """The process that serves the host has the agent's user id and must be out of its reach."""

    def test_tracing(self, inside: Any) -> None:
        code = """
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            for request in (16, 0x4206): print(libc.ptrace(request, 1, 0, 0), ctypes.get_errno())
            for name in ("mem", "environ", "maps", "fd/0", "root", "cwd", "exe", "auxv", "syscall"):
                path = f"/proc/1/{name}"
                try:
                    if name in ("root", "cwd", "exe", "fd/0"): os.readlink(path)
                    else: open(path, "rb").read(1)
                    print("REACHED", path)
                except OSError: pass
        """
        assert attack(inside, python(code)).output.splitlines() == ["-1 1", "-1 1"]

    def test_signals(self, inside: Any) -> None:
        every = "for n in $(seq 1 64); do kill -$n 1; done; kill -9 -1; sleep 60"
        assert attack(inside, every, timeout=1).status in _HUNG

    def test_a_storm_of_signals(self, inside: Any) -> None:
        storm = "for i in 1 2 3; do (while :; do kill -CHLD 1; kill -INT 1; done) & done; wait"
        assert attack(inside, storm, timeout=1).status is ExecStatus.TIMEOUT

    def test_its_descriptors_are_not_inherited(self, inside: Any) -> None:
        result = attack(inside, "ls /proc/self/fd")
        # 0, 1, 2 and the folder that ls has open.
        assert len(result.output.split()) == 4

    def test_its_code_cannot_be_changed(self, inside: Any) -> None:
        result = attack(inside, "echo > /.shim || mv /.shim /tmp || rm -f /.shim || echo held")
        assert result.output.splitlines()[-1] == "held"
