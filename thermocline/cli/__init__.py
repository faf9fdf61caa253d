"""The `thermocline` command: one room a noun, loaded when it is used. The contract is in docs and `--help`.

A room's `command` module holds its verbs and flags, and loads the rest when it runs. Every room stands on `terminal`
(flags, tables, questions, exit codes), those that ask a broker on `clients` too.
"""
