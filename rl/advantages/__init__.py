"""Advantages: how an episode's reward becomes credit, relative to the others of its group."""
