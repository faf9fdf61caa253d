"""Hostile bytes into every parser: one target a file, run by Atheris (`make fuzz`) and, on seeds, by `make test`.

A target is a module of `tests.fuzz.targets` with `seeds()`, real inputs made by our encoders or kept as golden files,
and `run(data)`, which raises only on a finding: errors that a parser promises are caught by their names, everything
else escapes. Where bytes are sealed with a checksum a target also runs them with the checksum made right, so that
damage reaches what lies behind it. Nothing here knows Atheris but `child.py`.
"""
