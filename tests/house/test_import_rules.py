"""Who may import whom. The folders stay separable only while this holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = {"torch", "ray", "vllm", "transformers", "triton", "deepspeed", "torchao"}

LIGHT_BASE = {"configs", "errors"}
"""Parts that every folder may use."""

FOLDERS = {
    "kernels": set(),
    "model": {"kernels"},
    "envs": {"rewards"},
    "rewards": {"envs"},
    "rollout": {"envs", "rewards", "model.config"},
    "configs": set(),
}
"""For each folder, the other folders of Polymath that it may import; `rl` may import all of them."""

HEAVY_ALLOWED = {
    "kernels": {"torch"},
    "model": {"torch"},
    "envs": set(),
    "rewards": set(),
    "rollout": set(),
    "configs": set(),
}

# Modules that run inside actors, or start them.
ACTORS = {
    "rollout/actors.py",
    "rollout/run_store.py",
    "rollout/sandbox_host.py",
    "rollout/verifier_service.py",
    "rollout/worker.py",
}


def heavy_allowed(file: Path) -> set[str]:
    relative = file.relative_to(ROOT)
    allowed = set(HEAVY_ALLOWED[relative.parts[0]])
    if relative.name == "triton.py" and relative.parts[0] == "kernels":
        allowed.add("triton")
    if relative.parts[:2] == ("model", "vllm"):
        allowed |= {"vllm", "transformers"}
    if is_engine(file) or relative.as_posix() in ACTORS:
        allowed |= {"ray", "torch", "vllm"}
    return allowed


def may_import(file: Path) -> set[str]:
    """Folders, and single modules of folders, that this file may import."""
    folder = file.relative_to(ROOT).parts[0]
    allowed = FOLDERS[folder] | LIGHT_BASE | {folder}
    # The engine's actor loads the model's vLLM plugin and the files of its weights.
    return allowed | ({"model.vllm", "model.checkpoint"} if is_engine(file) else set())


def is_engine(file: Path) -> bool:
    return file.relative_to(ROOT).parts[:2] == ("rollout", "engine")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module, inside functions too; what only type checkers see is left out."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.Import):
        yield from ((alias.name, tree.lineno) for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        assert tree.level == 0, f"line {tree.lineno}: import polymath.<folder>, not relatively"
        module = tree.module or ""
        yield module, tree.lineno
        if module in {"polymath", "polymath.model"}:
            yield from ((f"{module}.{alias.name}", tree.lineno) for alias in tree.names)
    for child in ast.iter_child_nodes(tree):
        yield from imports(child)


def breach(file: Path, module: str) -> str | None:
    """Why this file may not import this module, or None."""
    top, _, rest = module.partition(".")
    if top in HEAVY and top not in heavy_allowed(file):
        return f"imports {module}"
    if top in {"kernels", "model", "envs", "rewards", "rollout", "rl"}:
        return f"imports {module} instead of polymath.{module}"
    if top != "polymath" or not rest:
        return None
    part = rest.split(".")[0]
    allowed = may_import(file)
    if part in allowed or part.startswith("__"):
        return None
    if any(rest == name or rest.startswith(name + ".") for name in allowed if "." in name):
        return None
    if module == "polymath.model" and any(name.startswith("model.") for name in allowed):
        return None  # the names imported from it are judged one by one
    return f"imports {module}"


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_what_it_may(folder: str) -> None:
    breaches = [
        f"{file.relative_to(ROOT)}:{line} {why}"
        for file in files(folder)
        for module, line in imports(ast.parse(file.read_text()))
        if (why := breach(file, module))
    ]
    assert files(folder)
    assert not breaches, "\n".join(breaches)


def test_nobody_but_the_command_line_imports_rl() -> None:
    source = ROOT / "src" / "polymath"
    own = [*source.glob("*.py"), *(source / "testing").rglob("*.py")]
    others = [file for folder in FOLDERS for file in files(folder)]
    for file in [*own, *others]:
        for module, line in imports(ast.parse(file.read_text())):
            assert not module.startswith("polymath.rl"), f"{file}:{line}"


@pytest.mark.parametrize(
    ("file", "module", "allowed"),
    [
        ("envs/x.py", "torch", False),
        ("envs/x.py", "polymath.rl.schema", False),
        ("envs/x.py", "polymath.rewards.verdict", True),
        ("rewards/x.py", "polymath.rollout.types", False),
        ("rollout/x.py", "ray", False),
        ("rollout/worker.py", "ray", True),
        ("rollout/engine/x.py", "vllm.config", True),
        ("rollout/x.py", "polymath.model.hybrid", False),
        ("rollout/x.py", "polymath.model.config", True),
        ("rollout/x.py", "polymath.model.vllm", False),
        ("rollout/engine/x.py", "polymath.model.vllm.transfer", True),
        ("model/x.py", "kernels.kda", False),
        ("model/x.py", "vllm", False),
        ("kernels/kda/reference.py", "triton", False),
        ("kernels/kda/triton.py", "triton", True),
    ],
)
def test_the_rules_tell_right_from_wrong(file: str, module: str, allowed: bool) -> None:
    assert (breach(ROOT / file, module) is None) is allowed
