"""The transaction coordinator (KIP-98): the state of each transactional id, its log, and the markers that it sends.

The room knows no log of a data partition. A data partition learns of an outcome by a marker."""
