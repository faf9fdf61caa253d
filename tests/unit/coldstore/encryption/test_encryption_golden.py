"""The golden object stays readable, is what is written today, and is the worked example of the format's page."""

from __future__ import annotations

import re

from coldstore.encryption.envelope import read_trailer, stored_size
from coldstore.encryption.keys import KeyRing, WrappingKey
from coldstore.encryption.marker import TRAILER_BYTES
from coldstore.encryption.sealed_body import SealedBody
from tests.support.repository import ROOT, golden
from tests.support.store.memory_store import upload_of

NAME = "topics/0190a8c0-0000-7000-8000-000000000001/3/manifest.json"
PLAIN = b'{"hello": "cold tier"}'
STORED = golden("coldstore_encrypted_root_v1.bin")
KEY = WrappingKey("2026-11-28", bytes(range(32, 64)))


def test_the_golden_object_is_read() -> None:
    """By the key of its id, under its name."""
    found = read_trailer(NAME, STORED, len(STORED), KeyRing([KEY], None, accepts_plain=True))
    assert (found.key_id, found.size, found.stored) == ("2026-11-28", len(PLAIN), len(STORED))
    assert found.key.open(0, STORED[:-TRAILER_BYTES], found.size, NAME) == PLAIN


def test_it_is_written_today_too() -> None:
    """With the same data key and nonce, byte for byte."""
    body = SealedBody(NAME, upload_of(PLAIN), bytes(range(32)), KEY, bytes(range(12)))
    assert b"".join(map(bytes, body.upload().open())) == STORED and len(STORED) == stored_size(len(PLAIN))


def test_the_page_shows_it() -> None:
    """Every byte, in order, in the worked example; the fields of its table add up to the trailer."""
    page = (ROOT / "docs/formats/encryption.md").read_text()
    example = page[page.index("## Worked example") :]
    shown = "".join(re.findall(r"^(?:[0-9a-f]{2} )*[0-9a-f]{2}(?=\s|$)", example, re.M))
    assert bytes.fromhex(shown) == STORED
    trailer = page[page.index("## Trailer") : page.index("**Rewrapping**")]
    rows = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", trailer, re.M)]
    assert [at for at, _ in rows] == [sum(size for _, size in rows[:n]) for n in range(len(rows))]
    assert sum(size for _, size in rows) == TRAILER_BYTES
