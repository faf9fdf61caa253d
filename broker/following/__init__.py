"""Applies metadata to this broker.

Images arrive in order (`image_feed.py`); an older image changes nothing. `publisher.py` compares two images
(`changes.py`, pure), ends roles, withdraws topics and swaps the image that requests see (`metadata_cache.py`). Then it
reconfigures, leads, follows and deletes. No step waits.
"""
