"""Environments: the domain contract, its types, the registry, sandboxes and families."""
