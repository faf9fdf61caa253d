"""The terminal side of all commands: flags, times, tables, questions, and exit codes."""
