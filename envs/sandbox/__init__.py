"""Sandboxes: ``base`` is the interface, one file per backend."""
