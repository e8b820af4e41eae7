"""Learners: rank actors that turn rows into one optimizer step, and the group that drives them."""
