"""The key grammar: what makers make, the parser takes; what anything else wrote, it leaves alone."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstore.keys import (
    INT32_MAX,
    INT64_MAX,
    Key,
    MetadataKey,
    PageKey,
    RootKey,
    RootKind,
    SegmentKey,
    SnapshotKey,
    cluster_key,
    lease_key,
    manifest_key,
    parse_key,
)

TOPIC = UUID("0190a8c0-0000-7000-8000-000000000001")
OBJECT = UUID("5b3f2a9e-1c55-4b0e-9b1d-8a4c6f1d2e3f")

offsets = st.integers(0, INT64_MAX)
numbers = st.integers(0, INT32_MAX)
keys: st.SearchStrategy[Key] = st.one_of(
    st.just(RootKey(RootKind.CLUSTER)),
    st.just(RootKey(RootKind.LEASE)),
    st.builds(RootKey, st.just(RootKind.MANIFEST), st.uuids(), numbers),
    st.builds(SegmentKey, st.uuids(), numbers, offsets, numbers, st.uuids()),
    st.builds(
        lambda t, p, ends, e, u: PageKey(t, p, min(ends), max(ends), e, u),
        st.uuids(),
        numbers,
        st.tuples(offsets, offsets),
        numbers,
        st.uuids(),
    ),
    st.builds(SnapshotKey, st.uuids(), numbers, offsets, numbers, st.uuids()),
    st.builds(MetadataKey, offsets, numbers, st.uuids(), st.from_regex(r"[a-z0-9]{1,16}", fullmatch=True)),
)


def test_keys_look_as_documented() -> None:
    """The grammar of design 5, letter for letter: people and other engines read these."""
    assert cluster_key() == "cluster.json" and lease_key() == "lease.json"
    assert manifest_key(TOPIC, 3) == f"topics/{TOPIC}/3/manifest.json"
    segment = SegmentKey(TOPIC, 3, 42, 7, OBJECT)
    assert str(segment) == f"topics/{TOPIC}/3/segments/00000000000000000042-7-{OBJECT}.log"
    page = PageKey(TOPIC, 3, 0, 99, 7, OBJECT)
    assert str(page) == f"topics/{TOPIC}/3/pages/00000000000000000000-00000000000000000099-7-{OBJECT}.parquet"
    assert str(SnapshotKey(TOPIC, 3, 99, 7, OBJECT)).endswith(f"/snapshots/00000000000000000099-7-{OBJECT}.log")
    assert str(MetadataKey(5, 7, OBJECT)) == f"metadata/00000000000000000005-7-{OBJECT}.json"


@given(keys)
def test_parsing_undoes_making(key: Key) -> None:
    assert parse_key(str(key)) == key


@given(keys, st.data())
def test_a_damaged_key_is_another_key_or_none(key: Key, data: st.DataObject) -> None:
    """One character changed, added or dropped never yields a key that prints differently than it was found."""
    text = str(key)
    at = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(st.sampled_from(["drop", "double", "replace"]))
    char = data.draw(st.characters(codec="utf-8"))
    damaged = {
        "drop": text[:at] + text[at + 1 :],
        "double": text[: at + 1] + text[at:],
        "replace": text[:at] + char + text[at + 1 :],
    }[change]
    found = parse_key(damaged)
    assert found is None or str(found) == damaged


@given(st.text(max_size=400))
def test_any_string_is_survived(text: str) -> None:
    found = parse_key(text)
    assert found is None or str(found) == text


@pytest.mark.parametrize(
    "key",
    [
        "",
        "cluster.json\n",
        f"topics/{TOPIC}/03/manifest.json",
        f"topics/{str(TOPIC).upper()}/3/manifest.json",
        f"topics/{TOPIC}/2147483648/manifest.json",
        f"topics/{TOPIC}/3/segments/99999999999999999999-7-{OBJECT}.log",
        f"topics/{TOPIC}/3/segments/00000000000000000042-07-{OBJECT}.log",
        f"topics/{TOPIC}/3/segments/00000000000000000042-7-{OBJECT}.log.tmp",
        f"topics/{TOPIC}/3/segments/０0000000000000000042-7-{OBJECT}.log",
        f"topics/{TOPIC}/3/pages/00000000000000000009-00000000000000000003-7-{OBJECT}.parquet",
        f"topics/../{TOPIC}/3/manifest.json",
        "topics/" * 1000,
    ],
)
def test_what_is_not_ours_is_none(key: str) -> None:
    """Non-canonical numbers, other digits, reversed ranges, suffixes: unknown, so gc never touches them."""
    assert parse_key(key) is None
