"""A domain team's plugin and the command line start without the heavy libraries."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "vllm", "transformers")

SHOW = "import json, sys; print(json.dumps(sorted(m for m in sys.modules if '.' not in m)))"


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running ``code``."""
    command = [sys.executable, "-c", f"{code}\n{SHOW}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import polymath.envs, polymath.rewards",
        "import polymath.envs.contract, polymath.rewards.verdict",
        "from polymath.envs import registry; registry.specs()",
        "import polymath.rl.schema",
        "from polymath.configs import compose; compose('train', ['experiment=quickstart'])",
    ],
)
def test_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code).intersection(HEAVY)


def test_help_loads_neither_heavy_libraries_nor_configuration() -> None:
    code = (
        "import contextlib, io\nfrom polymath.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\nassert 'train' in out.getvalue()"
    )
    assert not loaded_after(code).intersection({*HEAVY, "hydra", "omegaconf", "numpy", "rich"})


def test_the_probe_sees_what_is_loaded() -> None:
    assert "numpy" in loaded_after("import numpy")
