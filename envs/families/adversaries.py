"""Hacks that need no knowledge of the domain: every shipped domain faces them."""

from __future__ import annotations

from polymath.envs.contract import Adversary
from polymath.envs.scripted import answer, script
from polymath.envs.types import Task, as_text

JUNK = ("done", "ok", "nan", "inf", "True", "[]", "{}", "null", "the answer is right", "\x00", "*")
"""Answers that careless checkers have been seen to accept."""


def common(task: Task) -> list[Adversary]:
    """Answering at once: junk, the prompt itself, and every number and word at the same time."""
    everything = " ".join(map(str, range(1000))) + " " + as_text(task.prompt)
    return [
        *(Adversary(f"answers {junk!r}", script(answer(junk))) for junk in JUNK),
        Adversary("answers the prompt", script(answer(as_text(task.prompt)))),
        Adversary("answers everything", script(answer(everything))),
    ]
