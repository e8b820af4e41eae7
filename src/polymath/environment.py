"""Environment variables that every process of Polymath runs under, set by code, not by the shell.

The command line calls `apply` before anything heavy is imported; processes that it starts inherit.
What a user has set stays.
"""

from __future__ import annotations

import os

DEFAULTS = {
    # A folder called `kernels` stands at the root of the project; children of a command started
    # there must not find it where they look for the package of that name.
    "PYTHONSAFEPATH": "1",
    # Models and tokenizers come from folders; nothing may be looked up on the network.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Ray otherwise writes a token into the home directory, reports usage and pings its maker.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The console belongs to the run's panel.
    "WANDB_SILENT": "true",
}
"""Variables and the values that they get unless they are set."""


def apply() -> None:
    """Set what is missing in this process's environment; children inherit it."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
