"""Processes of an engine end with their owner, however it ends."""

import subprocess
import sys

import psutil

FOLLOWER = "from polymath.model.vllm.lifeline import follow; follow(); print('up', flush=True); {}"
OWNER = """
import subprocess, sys
from polymath.model.vllm.lifeline import own
own()
child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
SLEEP = "import time; time.sleep(60)"


def test_a_killed_owner_takes_its_followers_along():
    code = OWNER.format(child=FOLLOWER.format(SLEEP))
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        follower = psutil.Process(int(owner.stdout.readline()))
        assert follower.is_running()
        owner.kill()
        owner.wait(10)
        assert not psutil.wait_procs([follower], timeout=10)[1]
    finally:
        owner.kill()


def test_a_follower_whose_owner_is_gone_already_leaves_at_once():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(10)
    code = f"import os; os.environ['POLYMATH_ENGINE_OWNER'] = '{gone.pid}'; " + FOLLOWER.format(
        SLEEP
    )
    follower = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    try:
        assert follower.wait(20) == 1
    finally:
        follower.kill()


def test_the_owner_itself_and_strangers_go_on():
    code = "from polymath.model.vllm.lifeline import own, follow; follow(); own(); follow()"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
