"""docs/RELIABILITY.md from what runs have recorded: `make reliability` runs them and writes the page.

Every run that counts writes its figures with `results.record` to docs/reliability/<name>.json, with the commit
they were measured at; `page` prints them. No figure stands anywhere else.
"""
