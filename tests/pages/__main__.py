"""`python -m tests.pages`: write docs/configuration.md and docs/compatibility.md anew."""

import argparse

from tests.pages import write_pages

argparse.ArgumentParser(prog="python -m tests.pages", description=__doc__).parse_args()
write_pages()
