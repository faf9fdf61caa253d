"""The `thermocline` command: one module a noun, loaded when it is used. The contract is in docs and `--help`."""
