"""Reports: `write_report` for one run, `write_comparison` for several (seeds, or variants).

Both read only the run folders' own files and write one page that needs nothing else.
"""

from polymath.rl.tracking.report.comparison import write_comparison
from polymath.rl.tracking.report.run import write_report

__all__ = ["write_comparison", "write_report"]
