"""Segment objects, manifests and a broker's tiering, for tests of `coldstore` and `tiering`."""
