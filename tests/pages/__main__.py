"""`python -m tests.pages`: write docs/configuration.md and docs/compatibility.md anew."""

from tests.pages import write_pages

write_pages()
