"""An encrypted bucket through pyarrow, beside deletions and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstore.encryption.marker import TRAILER_BYTES
from coldstore.inspection.audit import FindingKind
from logformat.errors import Corrupt
from tests.support.store.keys import ring_of, sealed_bytes, write_key_file
from thermocline.pipeline.arrow_store import finished, open_arrow_store
from thermocline.pipeline.jobs.scrub.scrub_view import check_ours, inspect_metadata


@pytest.mark.parametrize("accept_plain", [True, False])
def test_a_listing_is_complete_beside_deletions_and_damage(tmp_path: Path, accept_plain: bool) -> None:
    """An object that is gone by the time its end is read is left out; one whose trailer is damaged is listed."""
    keys, bucket = write_key_file(tmp_path / "keys.json", "now", accept_plain=accept_plain), tmp_path / "bucket"
    bucket.mkdir()
    for key in ("a", "b", "c"):
        (bucket / key).write_bytes(sealed_bytes(key, bytes(1000), ring_of("now")))
    damaged = bytearray((bucket / "b").read_bytes())
    damaged[-TRAILER_BYTES + 60] ^= 1
    (bucket / "b").write_bytes(damaged)
    store = open_arrow_store(f"file://{bucket}?key_file={keys}")

    async def listed() -> list[tuple[str, int]]:
        found = []
        async for info in store.list(""):
            (bucket / "c").unlink(missing_ok=True)
            found.append((info.key, info.size))
        return found

    assert finished(listed()) == [("a", 1000), ("b", 1000), *([] if accept_plain else [("c", 1000)])]
    with pytest.raises(Corrupt):
        finished(store.get("b"))


def test_a_bucket_whose_root_is_damaged_is_ours_all_the_same(tmp_path: Path) -> None:
    """Scrub goes on and reports it, as it does without encryption."""
    keys, bucket = write_key_file(tmp_path / "keys.json", "now"), tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "cluster.json").write_bytes(sealed_bytes("cluster.json", bytes(300), ring_of("now"))[:-30])
    store = open_arrow_store(f"file://{bucket}?key_file={keys}")
    check_ours(store)
    findings, _ = inspect_metadata(store)
    assert [(one.kind, one.key) for one in findings] == [(FindingKind.UNREADABLE, "cluster.json")]
