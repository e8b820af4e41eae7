"""Renderers: ``base`` is the interface, one file per chat format."""
