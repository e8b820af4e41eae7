"""How sandboxes are made and lent. What one task may use is in its domain's ``Limits``."""

from __future__ import annotations

from dataclasses import dataclass

from polymath.configs import Section


@dataclass(frozen=True)
class SandboxConfig(Section):
    """One node's sandboxes."""

    backend: str = "auto"
    """``bubblewrap``, or ``auto``: the first backend that can run here. Never unsafe execution."""
    warm: int = 2
    """Sandboxes of the kind in use that are kept ready; 0 creates each when it is asked for."""
    concurrent: int = 64
    """Sandboxes that live at a time; further borrowers wait."""
    acquire_seconds: float = 120.0
    """How long a borrower waits for a free place before it gets an error."""
    lease_seconds: float = 900.0
    """Time to live of a lease whose borrower names none."""
    start_seconds: float = 20.0
    """Deadline for a sandbox to come up."""
    grace_seconds: float = 10.0
    """How long after a command's own timeout the host waits before it gives the sandbox up."""
    tmp_bytes: int = 64 << 20
    """Size of /tmp; like the workspace it is memory and counts as such."""
    shm_bytes: int = 16 << 20
    """Size of /dev/shm."""
    inodes: int = 16384
    """Files, directories and links in each writable file system."""
    open_files: int = 512
    """Descriptors of one process."""
    output_ceiling_bytes: int = 64 << 20
    """A command that writes more than this is stopped, however little of it is kept."""
