"""Terminal tasks: a real bash in a real sandbox, one tool, checkers that look at what it left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymath.envs.contract import Domain
from polymath.envs.families.terminal.csv_join import CsvJoin
from polymath.envs.families.terminal.file_repair import FileRepair
from polymath.envs.families.terminal.log_triage import LogTriage

DOMAINS: Mapping[str, Callable[[], Domain]] = {
    domain.spec.id: domain for domain in (LogTriage, CsvJoin, FileRepair)
}
"""The family's domains by id."""
