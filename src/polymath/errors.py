"""Errors that end a command with one clear line instead of a traceback."""

from __future__ import annotations


class PolymathError(Exception):
    """Something failed. The message is one line: what failed, where, and what to do about it."""


class UserError(PolymathError):
    """What was asked for cannot be done as asked: an unknown key, a wrong value, a missing file."""


class MissingExtra(UserError):
    """An optional part is not installed; the message names the line that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'polymath-rl[{extra}]'")
        self.extra = extra
