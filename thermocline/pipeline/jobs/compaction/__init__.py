"""Compaction of an archive: groups of small files, their merge by tasks, and the commit that replaces them."""
