"""The Hydra tree and how it becomes typed, checked configuration."""
