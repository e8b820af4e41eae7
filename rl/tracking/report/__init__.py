"""Reports: `write_report` for one run, `write_comparison` for several (seeds, or variants).

Both read only the run folders' own files and write one page that needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polymath.rl.tracking.report.comparison import write_comparison
from polymath.rl.tracking.report.run import write_report

__all__ = ["write", "write_comparison", "write_report"]


def write(run_folders: Sequence[Path], output: Path) -> Path:
    """Write the report of one run, or the comparison of several, to ``output``."""
    if len(run_folders) == 1:
        return write_report(run_folders[0], output)
    return write_comparison(run_folders, output)
