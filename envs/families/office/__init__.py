"""Office tasks: real workbooks, one small tool, checkers that recalculate on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymath.envs.contract import Domain
from polymath.envs.families.office.formula_fill import FormulaFill
from polymath.envs.families.office.summary import Summary

DOMAINS: Mapping[str, Callable[[], Domain]] = {
    domain.spec.id: domain for domain in (FormulaFill, Summary)
}
"""The family's domains by id."""
