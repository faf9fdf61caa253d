"""The metrics page, with a module for each group of names."""
