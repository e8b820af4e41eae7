"""Where metrics go: the run's own files first, others as they can."""
