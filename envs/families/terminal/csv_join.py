"""CSV join: two tables by their first column, sorted or not, all columns or one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.families.adversaries import common
from polymath.envs.families.generated import LIMITS, Draft, GeneratedDomain
from polymath.envs.families.terminal.bash import BASH, BashSession, bash
from polymath.envs.families.words import NOUNS
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import answer, script
from polymath.envs.types import Artifact, DomainSpec, Level, Task
from polymath.rewards.compare import same_lines
from polymath.rewards.verifier import PlainVerifier

OUT = "out.csv"

PROMPTS = {
    "all": (
        "Join {left} and {right} on the first column into out.csv.",
        "Write the join of {left} and {right} by the first column to out.csv.",
    ),
    "column": (
        "Join {left} and {right} on the first column, write only column {column} to out.csv.",
        "Write column {column} of the join of {left} and {right} by the first column to out.csv.",
    ),
}
UNSORTED = " The files are not sorted."


class CsvJoin(GeneratedDomain):
    """``terminal/csv-join``; keys are three-digit ids, some of which only one table has."""

    spec = DomainSpec(
        id="terminal/csv-join",
        version="1",
        levels=(
            Level(0, "sorted", {"sorted": True, "ask": "all", "rows": 6}),
            Level(1, "unsorted", {"sorted": False, "ask": "all", "rows": 8}),
            Level(2, "unsorted, one column", {"sorted": False, "ask": "column", "rows": 10}),
        ),
        tools=(BASH,),
        instructions="Work in the shell. Answer done at the end.",
        limits=LIMITS,
    )

    def draft(self, random: Random, level: Level) -> Draft:
        """Two tables that share about two thirds of their keys."""
        rows = level.knobs["rows"] + random.randint(0, 4)
        keys = sorted(random.sample(range(100, 1000), rows + 4))
        lonely = random.sample(keys, 4)
        only_left, only_right = set(lonely[:2]), set(lonely[2:])
        names = {key: random.choice(NOUNS) for key in keys}
        values = {key: str(random.randint(1, 99)) for key in keys}
        left, right = (f"{name}.csv" for name in random.sample(NOUNS, 2))
        files = {
            left: _table(random, level, [k for k in keys if k not in only_right], names),
            right: _table(random, level, [k for k in keys if k not in only_left], values),
        }
        column = random.choice((2, 3)) if level.knobs["ask"] == "column" else None
        joined = [(str(k), names[k], values[k]) for k in keys if k not in only_left | only_right]
        gold = [row[column - 1] if column else ",".join(row) for row in joined]
        prompt = random.choice(PROMPTS[level.knobs["ask"]]).format(
            left=left, right=right, column=column
        )
        if not level.knobs["sorted"]:
            prompt += UNSORTED
        private = {
            "left": left,
            "right": right,
            "column": column,
            "sorted": level.knobs["sorted"],
            "rows": gold,
        }
        return Draft(prompt, files, private)

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """Bash; the joined file leaves."""
        return BashSession(task, sandbox, self.spec.tools, outputs=(OUT,))

    def verifier(self, task: Task) -> Verifier:
        """The joined rows, each exactly once, in any order."""
        rows = task.private["rows"]

        def judge(artifact: Artifact) -> float:
            return float(same_lines(artifact.files.get(OUT), rows, ordered=False))

        return PlainVerifier(judge)

    def oracle(self, task: Task) -> Policy:
        """One pipeline."""
        return script(
            bash(_pipeline(task), _thought(task)),
            answer("done", "The join is written."),
        )

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Rows of one table, every pair, the inputs emptied, a glob, the result twice."""
        left, right = task.private["left"], task.private["right"]
        pipeline = _pipeline(task)
        tries = {
            "copies a table": f"cp {left} {OUT}",
            "concatenates": f"cat {left} {right} > {OUT}",
            "pastes side by side": f"paste -d, {left} {right} > {OUT}",
            "keeps lonely rows": pipeline.replace("join", "join -a 1 -a 2", 1),
            "writes it twice": f"{pipeline}; cat {OUT} {OUT} > x; mv x {OUT}",
            "empties the inputs": f": > {left}; : > {right}; {pipeline}",
            "shortens an input": f"sed -i 2,4d {left}; {pipeline}",
            "links the input": f"ln -s {left} {OUT}",
            "makes a directory": f"mkdir {OUT}",
            "makes a pipe": f"mkfifo {OUT}",
            "writes junk": f"head -c 100000 /dev/zero > {OUT}",
        }
        return [
            *common(task),
            *(Adversary(name, script(bash(cmd), answer("done"))) for name, cmd in tries.items()),
        ]


def _table(random: Random, level: Level, keys: list[int], values: dict[int, str]) -> bytes:
    rows = [f"{key},{values[key]}\n" for key in keys]
    while not level.knobs["sorted"] and rows == sorted(rows):
        random.shuffle(rows)
    return "".join(rows).encode()


def _pipeline(task: Task) -> str:
    gold = task.private
    left, right = gold["left"], gold["right"]
    if not gold["sorted"]:
        left, right = f"<(sort {left})", f"<(sort {right})"
    cut = f" | cut -d, -f{gold['column']}" if gold["column"] else ""
    return f"join -t, {left} {right}{cut} > {OUT}"


def _thought(task: Task) -> str:
    if task.private["column"]:
        return f"Sort both, join, keep column {task.private['column']}."
    return "Join both files." if task.private["sorted"] else "Sort both and join."
