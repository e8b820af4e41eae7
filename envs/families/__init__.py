"""The shipped domains, one folder per family."""
