"""Sandboxes: ``base`` is the interface, one file per backend, ``select`` chooses among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymath.envs.sandbox.base import SandboxBackend, SandboxUnavailable

if TYPE_CHECKING:
    from polymath.envs.sandbox.schema import SandboxConfig

BACKENDS = ("bubblewrap",)
"""In the order in which ``auto`` tries them."""


def select(config: SandboxConfig) -> SandboxBackend:
    """The backend that a configuration asks for.

    ``auto`` takes the first that can run here. Raises ``SandboxUnavailable`` with each one's fix
    when none can, and ``ValueError`` for an unknown name. Commands never run outside a sandbox.
    """
    choice = config.backend
    if choice != "auto" and choice not in BACKENDS:
        raise ValueError(f"no sandbox backend {choice!r}; there are auto, {', '.join(BACKENDS)}")
    problems = []
    for name in BACKENDS if choice == "auto" else (choice,):
        backend = _backend(name, config)
        problem = backend.problem()
        if problem is None:
            return backend
        problems.append(f"{name}: {problem}")
    raise SandboxUnavailable("no sandbox can run here. " + "; ".join(problems))


def _backend(name: str, config: SandboxConfig) -> SandboxBackend:
    from polymath.envs.sandbox.bubblewrap import BubblewrapBackend

    return {"bubblewrap": BubblewrapBackend}[name](config)
