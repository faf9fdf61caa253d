"""Segment objects: body, footer, indexes, and the chunk cache."""
