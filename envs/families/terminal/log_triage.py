"""Log triage: count the lines of a level or of a component, or find one line's id."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.families.adversaries import common
from polymath.envs.families.generated import LIMITS, Draft, GeneratedDomain
from polymath.envs.families.terminal.bash import BASH, BashSession, bash
from polymath.envs.families.words import NOUNS
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import Plan, Script, answer, script
from polymath.envs.types import DomainSpec, Level, Task
from polymath.rewards.compare import same_number
from polymath.rewards.verifier import PlainVerifier

LEVELS = ("ERROR", "WARN", "INFO", "DEBUG")
COMPONENTS = ("api", "auth", "cache", "cron", "disk", "dns", "mail", "net", "queue", "web")

PROMPTS = {
    "level": (
        "How many {level} lines are in {file}?",
        "Count the {level} lines in {file}.",
        "Tell me the number of {level} lines in {file}.",
    ),
    "component": (
        "How many {level} lines of {component} are in {file}?",
        "Count the {level} lines of {component} in {file}.",
        "Tell me the number of {level} lines of {component} in {file}.",
    ),
    "id": (
        "What is the id of the {end} {level} line in {file}?",
        "Give the id of the {end} {level} line in {file}.",
        "Find the id of the {end} {level} line in {file}.",
    ),
}

Line = tuple[str, str, int]
"""Level, component and id of a log line; the time follows from its place."""


class LogTriage(GeneratedDomain):
    """``terminal/log-triage``; a log line is ``time level component id``."""

    spec = DomainSpec(
        id="terminal/log-triage",
        version="1",
        levels=(
            Level(0, "count a level", {"ask": "level", "lines": 40}),
            Level(1, "count a level of a component", {"ask": "component", "lines": 60}),
            Level(2, "find a line's id", {"ask": "id", "lines": 80}),
        ),
        tools=(BASH,),
        instructions="Log lines are: time level component id. Answer with the number alone.",
        limits=LIMITS,
        guess_rate=0.1,
    )

    def draft(self, random: Random, level: Level) -> Draft:
        """A log in which the asked count or id is spread over many values."""
        ask, size = level.knobs["ask"], level.knobs["lines"]
        wanted, component = random.choice(LEVELS), random.choice(COMPONENTS)
        lines = _lines(random, size, wanted, component, ask)
        end = random.choice(("first", "last"))
        hits = [line for line in lines if line[0] == wanted]
        if ask == "component":
            hits = [line for line in hits if line[1] == component]
        gold = hits[0 if end == "first" else -1][2] if ask == "id" else len(hits)
        file = f"{random.choice(NOUNS)}.log"
        facts = {"file": file, "level": wanted, "component": component, "end": end}
        prompt = random.choice(PROMPTS[ask]).format(**facts)
        private = {"ask": ask, "answer": gold, **facts}
        return Draft(prompt, {file: _render(random, lines)}, private)

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """Bash; nothing but the answer leaves."""
        return BashSession(task, sandbox, self.spec.tools)

    def verifier(self, task: Task) -> Verifier:
        """The answer must be the number."""
        gold = float(task.private["answer"])
        return PlainVerifier(lambda artifact: float(same_number(artifact.answer, gold)))

    def oracle(self, task: Task) -> Policy:
        """One grep."""
        gold = task.private
        file, level = gold["file"], gold["level"]

        def plan(prompt: str) -> Plan:
            if gold["ask"] == "id":
                end = "head" if gold["end"] == "first" else "tail"
                line = yield bash(
                    f"grep {level} {file} | {end} -n 1", f"Find the {gold['end']} {level} line."
                )
                number = line.split()[-1]
                yield answer(number, f"The id is {number}.")
                return
            pattern, what = level, level
            if gold["ask"] == "component":
                pattern, what = f"'{level} {gold['component']}'", f"{level} {gold['component']}"
            count = yield bash(f"grep -c {pattern} {file}", f"Count {what} with grep.")
            yield answer(count, f"There are {count}.")

        return Script(plan)

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Wrong lines counted, the file shown as the answer, the log edited."""
        gold = task.private
        file, right = gold["file"], gold["answer"]

        def dump(prompt: str) -> Plan:
            yield answer((yield bash(f"cat {file}")))

        def edited(prompt: str) -> Plan:
            count = yield bash(f"echo {gold['level']} >> {file}; grep -c {gold['level']} {file}")
            yield answer(count if gold["ask"] == "level" else right + 1)

        return [
            *common(task),
            Adversary("answers the log", Script(dump)),
            Adversary("edits the log", Script(edited)),
            Adversary("hedges", script(answer(f"{right} or {right + 1}"))),
            Adversary("wraps the answer", script(answer(f"The answer is {right}."))),
        ]


def _lines(random: Random, size: int, level: str, component: str, ask: str) -> list[Line]:
    """``size`` lines; the number that counts is uniform, so that no constant guesses it often."""
    others = [name for name in LEVELS if name != level]
    rest = [name for name in COMPONENTS if name != component]
    ids = random.sample(range(100, 1000), size)
    if ask == "component":
        hits = random.randint(2, size // 3)
        kinds = [(level, component)] * hits
        kinds += [(level, random.choice(rest)) for _ in range(random.randint(2, size // 4))]
    else:
        hits = random.randint(2, size - 10)
        kinds = [(level, random.choice(COMPONENTS)) for _ in range(hits)]
    kinds += [(random.choice(others), random.choice(COMPONENTS)) for _ in range(size - len(kinds))]
    random.shuffle(kinds)
    return [(*kind, number) for kind, number in zip(kinds, ids, strict=True)]


def _render(random: Random, lines: list[Line]) -> bytes:
    start = random.randint(0, 12 * 3600)
    times = sorted(random.sample(range(start, start + 4 * 3600), len(lines)))
    rows = [
        f"{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02} {level} {component} {number}\n"
        for at, (level, component, number) in zip(times, lines, strict=True)
    ]
    return "".join(rows).encode()
