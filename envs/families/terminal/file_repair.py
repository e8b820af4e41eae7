"""File repair: set keys of configuration files, where every other line must stay as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from polymath.envs.contract import Adversary, Policy, Session, Verifier
from polymath.envs.families.adversaries import common
from polymath.envs.families.generated import LIMITS, Draft, GeneratedDomain
from polymath.envs.families.terminal.bash import BASH, BashSession, bash
from polymath.envs.families.words import NOUNS
from polymath.envs.sandbox.base import Sandbox
from polymath.envs.scripted import answer, script
from polymath.envs.types import Artifact, DomainSpec, Level, Task
from polymath.rewards.compare import lines
from polymath.rewards.verifier import PlainVerifier

KEYS = (
    "port", "host", "user", "mode", "level", "size", "limit", "speed", "depth", "width",
    "color", "owner", "region", "cache", "retry", "group",
)  # fmt: skip

PROMPTS = {
    "one": (
        "Set {key0} to {value0} in {file0}.",
        "In {file0} {key0} must be {value0}. Fix it.",
        "Change {key0} to {value0} in {file0}.",
    ),
    "two files": (
        "Set {key0} to {value0} in {file0} and {key1} to {value1} in {file1}.",
        "In {file0} {key0} must be {value0} and in {file1} {key1} must be {value1}. Fix it.",
    ),
    "rename": (
        "Rename {old} to {file0}, then set {key0} to {value0} and {key1} to {value1} in it.",
        "Move {old} to {file0} and change there {key0} to {value0} and {key1} to {value1}.",
    ),
}


class FileRepair(GeneratedDomain):
    """``terminal/file-repair``; lines are ``key=value``, and near-miss keys lie in wait."""

    spec = DomainSpec(
        id="terminal/file-repair",
        version="1",
        levels=(
            Level(0, "one key", {"ask": "one", "edits": 1, "lines": 4}),
            Level(1, "two keys in two files", {"ask": "two files", "edits": 2, "lines": 5}),
            Level(2, "rename and two keys", {"ask": "rename", "edits": 2, "lines": 6}),
        ),
        tools=(BASH,),
        instructions="Work in the shell. Lines are key=value. Change nothing else. Answer done.",
        limits=LIMITS,
    )

    def draft(self, random: Random, level: Level) -> Draft:
        """One or two files, each with the wrong values and with traps beside them."""
        ask = level.knobs["ask"]
        names = [f"{name}.conf" for name in random.sample(NOUNS, 3)]
        keys = random.sample(KEYS, 2)[: level.knobs["edits"]]
        places = [names[1] if ask == "two files" and i == 1 else names[0] for i in range(len(keys))]
        files: dict[str, bytes] = {}
        gold: dict[str, str] = {}
        edits = []
        for place in dict.fromkeys(places):
            mine = [key for key, at in zip(keys, places, strict=True) if at == place]
            before, after, wanted = _file(random, mine, level.knobs["lines"])
            files[names[2] if ask == "rename" else place] = before.encode()
            gold[place] = after
            edits += [{"file": place, "key": key, "value": wanted[key]} for key in mine]
        facts = {f"{name}{i}": edit[name] for i, edit in enumerate(edits) for name in edit}
        old = names[2] if ask == "rename" else None
        prompt = random.choice(PROMPTS[ask]).format(**facts, old=old)
        return Draft(prompt, files, {"files": gold, "edits": edits, "old": old})

    async def open(self, task: Task, sandbox: Sandbox) -> Session:
        """Bash; the repaired files leave, and the old name, which must be gone."""
        return BashSession(task, sandbox, self.spec.tools, outputs=_outputs(task))

    def verifier(self, task: Task) -> Verifier:
        """Every file byte for byte, and the old one gone."""
        gold: Mapping[str, str] = task.private["files"]
        old = task.private["old"]

        def judge(artifact: Artifact) -> float:
            if old in artifact.files:
                return 0.0
            return float(all(artifact.files.get(name) == gold[name].encode() for name in gold))

        def milestones(artifact: Artifact) -> dict[str, float]:
            found = {name: lines(artifact.files.get(name)) or [] for name in gold}
            done = {
                f"{edit['file']} {edit['key']}": f"{edit['key']}={edit['value']}"
                in found[edit["file"]]
                for edit in task.private["edits"]
            }
            if old:
                done["renamed"] = old not in artifact.files
            return {name: float(reached) for name, reached in done.items()}

        return PlainVerifier(judge, milestones)

    def oracle(self, task: Task) -> Policy:
        """A move where asked, and one sed for each key."""
        steps = []
        if old := task.private["old"]:
            new = next(iter(task.private["files"]))
            steps.append(bash(f"mv {old} {new}", f"Rename {old} first."))
        steps += [
            bash(_sed(**edit), f"Set {edit['key']} in {edit['file']} with sed.")
            for edit in task.private["edits"]
        ]
        return script(*steps, answer("done", "All is set."))

    def adversaries(self, task: Task) -> Sequence[Adversary]:
        """Files that hold the right line and lost, doubled or changed others."""
        edits = task.private["edits"]
        move = f"mv {task.private['old']} {edits[0]['file']}; " if task.private["old"] else ""

        def each(template: str) -> str:
            return move + "; ".join(template.format(**edit) for edit in edits)

        tries = {
            "writes only the line": each("echo {key}={value} > {file}"),
            "appends the line": each("echo {key}={value} >> {file}"),
            "hits near-miss keys": each("sed -i 's/{key}=.*/{key}={value}/' {file}"),
            "sets every line": each("sed -i 's/=.*/={value}/' {file}"),
            "deletes the file": each("rm -f {file}"),
            "makes a link": each("mv {file} x; ln -s x {file}"),
        }
        return [
            *common(task),
            *(Adversary(name, script(bash(cmd), answer("done"))) for name, cmd in tries.items()),
        ]


def _outputs(task: Task) -> tuple[str, ...]:
    old = task.private["old"]
    return (*task.private["files"], *((old,) if old else ()))


def _sed(file: str, key: str, value: str) -> str:
    return f"sed -i 's/^{key}=.*/{key}={value}/' {file}"


def _file(random: Random, keys: list[str], size: int) -> tuple[str, str, dict[str, str]]:
    """(broken text, repaired text, wanted value by key); each key has a near miss ``x_key=``."""
    others = [key for key in KEYS if key not in keys]
    wrong = {key: _value(random) for key in keys + random.sample(others, size)}
    for key in keys:
        wrong[f"{random.choice(('old', 'max', 'new'))}_{key}"] = _value(random)
    wanted = {key: _value(random, unlike=wrong.values()) for key in keys}
    order = random.sample(sorted(wrong), len(wrong))
    before = "".join(f"{key}={wrong[key]}\n" for key in order)
    after = "".join(f"{key}={wanted.get(key, wrong[key])}\n" for key in order)
    return before, after, wanted


def _value(random: Random, unlike: Collection[str] = ()) -> str:
    while True:
        value = str(random.randint(10, 9999)) if random.random() < 0.5 else random.choice(NOUNS)
        if value not in unlike:
            return value
