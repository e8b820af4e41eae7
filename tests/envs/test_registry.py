import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from polymath.envs import registry
from polymath.envs.families.terminal import DOMAINS, LogTriage
from polymath.envs.registry import GROUP, Registry, UnknownDomain

BROKEN = "tests-have-no-such-module:DOMAINS"
SHIPPED = {
    "office/formula-fill",
    "office/summary",
    "reasoning/chain-sum",
    "reasoning/spell-backward",
    "terminal/csv-join",
    "terminal/file-repair",
    "terminal/log-triage",
}


def point(value: str) -> EntryPoint:
    return EntryPoint("plugin", value, GROUP)


def test_the_shipped_domains_are_found() -> None:
    assert set(registry.ids()) >= SHIPPED
    assert registry.get("terminal/log-triage").spec is LogTriage.spec
    assert registry.get("terminal/log-triage") is registry.get("terminal/log-triage")


def test_an_unknown_domain_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownDomain, match=r"did you mean terminal/log-triage\?"):
        registry.get("terminal/log-triag")


def test_a_broken_plugin_is_named_and_left_out() -> None:
    found = Registry(
        {
            "broken": point(BROKEN),
            "empty": point("polymath.envs.registry:GROUP"),
            "terminal": point("polymath.envs.families.terminal:DOMAINS"),
        }
    )
    assert found.ids() == sorted(DOMAINS)
    assert {name.split()[0] for name in found.problems()} == {"broken", "empty"}


def test_a_domain_that_cannot_be_made_takes_nobody_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> LogTriage:
        raise RuntimeError("no model file")

    monkeypatch.setattr(
        "polymath.envs.families.terminal.DOMAINS",
        {"terminal/broken": fails, "terminal/log-triage": LogTriage},
    )
    found = Registry({"terminal": point("polymath.envs.families.terminal:DOMAINS")})
    assert [spec.id for spec in found.specs()] == ["terminal/log-triage"]
    assert "no model file" in found.problems()["terminal/broken"]


def test_a_second_plugin_cannot_take_a_domains_name() -> None:
    family = point("polymath.envs.families.terminal:DOMAINS")
    found = Registry({"first": family, "second": family})
    assert found.ids() == sorted(DOMAINS)
    assert "already taken" in next(iter(found.problems().values()))


def test_listing_imports_no_heavy_library() -> None:
    program = (
        "import sys, json; from polymath.envs import registry; registry.specs();"
        "print(json.dumps(sorted(set(sys.modules) & {'openpyxl', 'reasoning_gym', 'torch', 'ray',"
        " 'vllm', 'transformers', 'numpy'})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert json.loads(done.stdout) == []
