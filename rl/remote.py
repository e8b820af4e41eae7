"""Failures of actors in one line: the typed error behind what Ray raised.

What Ray raises prints the whole remote traceback, and may be wrapped once for each actor it crossed.
"""

from __future__ import annotations

from polymath.errors import PolymathError


def typed(what: str, error: BaseException, otherwise: type[PolymathError]) -> PolymathError:
    """The typed error at the root of ``error``; else one of type ``otherwise`` that says ``what``
    failed and why."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    if isinstance(error, PolymathError):
        return error
    return otherwise(f"{what}: {type(error).__name__}: {_line(error)}")


def _line(error: BaseException) -> str:
    """The line that says it: the first, except that an actor's failed start ends in its cause."""
    lines = str(error).strip().splitlines() or ["no message"]
    return lines[-1 if getattr(error, "actor_init_failed", False) else 0].strip()
