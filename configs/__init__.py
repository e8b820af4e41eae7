"""The Hydra tree and how it becomes typed, checked configuration.

Schemas are frozen dataclasses that derive from `Section` and lie beside the code that they
configure; the YAML files here only choose among them and hold what differs from their defaults.
"""

from polymath.configs.composition import Composed, compose, parse, unread
from polymath.configs.section import ReportsReads, Section, bind, forget_reads, reads

__all__ = [
    "Composed",
    "ReportsReads",
    "Section",
    "bind",
    "compose",
    "forget_reads",
    "parse",
    "reads",
    "unread",
]
