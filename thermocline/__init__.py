"""Thermocline: a log service that speaks the Kafka protocol, warm on disk and cold in a bucket.

Nothing heavy is imported here: the command line starts from this package.
"""

from __future__ import annotations

__version__ = "0.1.0"
