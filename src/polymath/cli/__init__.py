"""The command `polymath`: one short file per group of commands, heavy imports inside functions.

A command module has ``register(commands)``, which adds its parsers and sets ``run``, a function from
the parsed arguments to the exit code. Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly.
"""
