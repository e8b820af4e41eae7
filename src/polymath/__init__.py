"""Polymath: agentic reinforcement-learning post-training across hundreds of domains.

Importing this package is cheap: nothing here loads torch, ray, vllm or transformers.
"""

__version__ = "0.1.0"
