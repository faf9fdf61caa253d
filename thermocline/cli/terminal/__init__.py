"""Shared parts of all commands: flags, times, tables, questions, and exit codes."""
