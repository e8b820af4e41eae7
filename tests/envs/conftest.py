"""The real sandboxes that the families are tested in."""

from collections.abc import Callable

import pytest

from polymath.envs.sandbox import select
from polymath.envs.sandbox.base import SandboxBackend
from polymath.envs.sandbox.schema import SandboxConfig


@pytest.fixture
def make_backend() -> Callable[[], SandboxBackend]:
    """Makes the backend that runs here; close it in the loop that used it."""
    return lambda: select(SandboxConfig())
