"""The Ray cluster of a run: joined, or started for the run and ended with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polymath import environment
from polymath.errors import PolymathError
from polymath.rl.schema import RayConfig


class ClusterError(PolymathError):
    """The cluster cannot be reached or started."""


@contextmanager
def cluster(config: RayConfig) -> Iterator[None]:
    """Ray is up inside. A local cluster belongs to this process and ends with it."""
    address, object_store_bytes = config.address, config.object_store_bytes
    connect_seconds = config.connect_seconds
    environment.apply()
    import ray

    options = {"log_to_driver": False, "configure_logging": True, "logging_level": "ERROR"}
    if address == "local":
        # Actors ask for no CPUs: on a small machine their number would exceed the cores, and what
        # bounds their work are threads and concurrency, not reservations.
        options |= {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": object_store_bytes,
        }
    else:
        options["address"] = address
    try:
        if address == "local":
            ray.init(**options)
        else:
            _within(connect_seconds, lambda: ray.init(**options))
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClusterError(f"Ray did not start (ray.address={address}): {first}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _within(seconds: float, connect: Callable[[], object]) -> None:
    """Ray waits for minutes for what listens at an address and is no cluster; this does not."""
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            connect()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within ray.connect_seconds={seconds:.0f} s")
    if failures:
        raise failures[0]
