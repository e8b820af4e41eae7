"""The Ray cluster of a run: joined, or started for the run and ended with it."""

from __future__ import annotations

from collections.abc import Iterator
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
        ray.init(**options)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClusterError(f"Ray did not start (ray.address={address}): {first}") from error
    try:
        yield
    finally:
        ray.shutdown()
