"""The tables of an archive: their columns, their commits, and the storage of their data files.

`iceberg_table.py` commits a step exactly once. `archive_tables.py` has the archive's two tables, the records and the
dead letters.
"""
