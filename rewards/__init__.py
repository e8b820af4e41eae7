"""Verdicts, what verifiers share, and reward composition."""
