"""Rollout: engines, agent loop, renderers, episodes, run store, sandbox host, verifier service."""
