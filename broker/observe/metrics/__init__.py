"""The metrics page, a family of names a module."""
