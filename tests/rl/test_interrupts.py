"""Ctrl-C, in a real process."""

import signal
import subprocess
import sys

import psutil

SCRIPT = """
import asyncio, subprocess, sys
from polymath.rl.interrupts import interrupts

async def main():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    asked = asyncio.Event()
    with interrupts(asked.set):
        print("ready", child.pid, flush=True)
        await asked.wait()
        print("asked", flush=True)
        if "obey" not in sys.argv:
            await asyncio.sleep(600)
    child.kill()
    print("ended well", flush=True)

asyncio.run(main())
"""


def start(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, int(process.stdout.readline().split()[1])


def test_the_first_ctrl_c_asks_and_lets_the_run_end_well() -> None:
    process, _ = start("obey")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert output == "asked\nended well\n"
    assert process.returncode == 0


def test_the_second_ends_everything_at_once() -> None:
    process, child_id = start()
    child = psutil.Process(child_id)
    process.send_signal(signal.SIGINT)
    assert process.stdout and process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    _, alive = psutil.wait_procs([child], timeout=10)
    assert not alive or child.status() == psutil.STATUS_ZOMBIE
