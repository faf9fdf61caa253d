"""Topic-partitions, topic names, and Kafka's text form of a UUID.

A name that `is_topic_name` accepts is safe as one component of a local path. Source: Kafka's Topic.validate (1–249 of
`[a-zA-Z0-9._-]`, neither `.` nor `..`) and Uuid (16 bytes as 22 characters of base64url without padding).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from logformat.errors import Corrupt

TOPIC_NAME_CHARS_MAX: Final = 249  # a directory name is <topic>-<partition>, and a file name has 255 bytes
UUID_SIZE: Final = 16
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_UUID_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{22}")


class NewerFormat(Corrupt):
    """A file has a format that this program does not know: run the newer program, and do not rewrite the file."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_topic_name(name: str) -> bool:
    """Whether Kafka would create a topic of this name; only such a name may become part of a local path."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def uuid_text(uuid: bytes) -> str:
    """16 bytes → Kafka's text form, e.g. 16 zero bytes → `AAAAAAAAAAAAAAAAAAAAAA`."""
    assert len(uuid) == UUID_SIZE, f"a UUID has {UUID_SIZE} bytes, got {len(uuid)}"
    return urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """The inverse of `uuid_text`. Raises Corrupt for a text that `uuid_text` would not write."""
    if _UUID_TEXT.fullmatch(text) is None:
        raise Corrupt(f"{text[:40]!r} is not a Kafka UUID (22 characters of base64url)")
    uuid = urlsafe_b64decode(text + "==")
    if uuid_text(uuid) != text:
        raise Corrupt(f"{text!r} is not a Kafka UUID: bits beyond 128 are set")
    return uuid
