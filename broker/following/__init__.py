"""Applies metadata to this broker.

Images arrive in order (`image_feed.py`); an older one changes nothing. `publisher.py` compares two images
(`changes.py`, pure), resigns and withdraws, swaps what requests see (`metadata_cache.py`), then reconfigures, leads,
follows and deletes. No step waits.
"""
