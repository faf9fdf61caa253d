"""Segment objects: body, footer, indexes, and what of them is cached."""
