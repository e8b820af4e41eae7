"""What every test runs under."""

import os

from polymath import environment

environment.apply()
# Two cores serve everything; more threads only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
