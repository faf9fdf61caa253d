"""Bytes of record batches to Arrow."""
