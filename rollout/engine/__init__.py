"""Engines: ``base`` is the interface, one file per engine."""
