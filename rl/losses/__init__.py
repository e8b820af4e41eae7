"""Losses: named sums with global denominators, so that no split of a batch changes the gradient."""
