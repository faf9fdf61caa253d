"""The `thermocline` command: one package for each noun, loaded when it is used. The contract is in docs and `--help`.

A package's `command` module has its verbs and flags, and imports the rest when it runs. `terminal` has flags, tables,
questions and exit codes; `clients` has the connections to brokers.
"""
