"""The metrics page; a module for each group of names."""
