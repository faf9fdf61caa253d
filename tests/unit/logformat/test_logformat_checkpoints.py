"""The small text files of a log directory: Kafka's bytes, back and forth, and nothing half understood."""

from __future__ import annotations

import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logformat.checkpoints import (
    CHECKSUM_ENTRY,
    MetaProperties,
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
    encode_partition_metadata,
    parse_properties,
)
from logformat.errors import Corrupt
from logformat.properties import format_properties
from logformat.values import NewerFormat, TopicPartition, is_topic_name, uuid_from_text, uuid_text

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True).filter(is_topic_name)
keys = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


def test_offset_checkpoint_text():
    """Version, count, then topic, partition, offset; sorted; the checksum last. Kafka's own has none."""
    offsets = {TopicPartition("b", 0): 7, TopicPartition("a.x-1", 10): 2**63 - 1, TopicPartition("a.x-1", 9): 0}
    raw = b"0\n3\na.x-1 9 0\na.x-1 10 9223372036854775807\nb 0 7\n"
    checksum = crc32c(raw[4:])
    assert encode_offsets(offsets) == raw.replace(b"0\n3", b"0\n4", 1) + b"__thermocline.crc32c 0 %d\n" % checksum
    assert decode_offsets(raw, "f") == offsets
    assert encode_offsets({}) == b"0\n0\n"
    assert decode_offsets(b"", "f") == {}
    assert str(TopicPartition("b", 0)) == "b-0"


@given(st.dictionaries(keys, st.integers(0, 2**63 - 1), max_size=8))
def test_offset_checkpoint_round_trip(offsets: dict[TopicPartition, int]):
    """Any names that Kafka would take."""
    assert decode_offsets(encode_offsets(offsets), "f") == offsets


def test_a_topic_that_a_client_named_like_the_checksum_is_a_topic():
    """Two entries of one name made the broker refuse its own data directory: any client could do that to it."""
    offsets = {CHECKSUM_ENTRY: 5, TopicPartition("a", 0): 3}
    assert decode_offsets(encode_offsets(offsets), "f") == offsets
    assert decode_offsets(encode_offsets({CHECKSUM_ENTRY: 5}), "f") == {CHECKSUM_ENTRY: 5}
    with pytest.raises(Corrupt):
        decode_offsets(encode_offsets(offsets).replace(b"a 0 3", b"a 0 2"), "f")


def test_a_checksum_that_an_older_version_carried_along_is_not_believed():
    """It knew no checksum, took the entry for a log's, and wrote all entries sorted, with new offsets."""
    ours = {TopicPartition("orders", 0): 7}
    carried = int(encode_offsets(ours).split()[-1])
    older = b"0\n2\n__thermocline.crc32c 0 %d\norders 0 9\n" % carried
    assert decode_offsets(older, "f")[TopicPartition("orders", 0)] == 9


@pytest.mark.parametrize(
    "entry", ["t 0", "t 0 1 2", "t -1 1", "t 0 -1", "t x 1", ". 0 1", ".. 0 1", "a/b 0 1", "t 0 1\nt 0 2", "tö 0 1"]
)
def test_offset_checkpoint_refuses(entry: str):
    """A name that could leave its directory, a number that is none, an entry given twice."""
    count = entry.count("\n") + 1
    with pytest.raises(Corrupt):
        decode_offsets(f"0\n{count}\n{entry}\n".encode(), "recovery-point-offset-checkpoint")


@pytest.mark.parametrize(
    ("name", "valid"),
    [("a", True), ("__consumer_offsets", True), ("A-b.c_9", True), ("x" * 249, True), ("x" * 250, False), ("", False),
     (".", False), ("..", False), ("...", True), ("a/b", False), ("a b", False),
     ("a\n", False), ("ä", False), ("a\0", False)],
)  # fmt: skip
def test_topic_names(name: str, valid: bool):
    """Kafka's own rule."""
    assert is_topic_name(name) is valid


@given(st.binary(min_size=16, max_size=16))
def test_uuids_are_kafkas(raw: bytes):
    """Base64url without padding, both ways."""
    text = uuid_text(raw)
    assert len(text) == 22 and "=" not in text
    assert uuid_from_text(text) == raw


def test_a_known_uuid():
    """Kafka's id of its metadata topic."""
    assert uuid_text(uuid.UUID(int=1).bytes) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_from_text("AAAAAAAAAAAAAAAAAAAAAA") == bytes(16)


@pytest.mark.parametrize(
    "text", ["", "A" * 21, "A" * 23, "A" * 21 + "B", "A" * 21 + "=", "A" * 21 + "+", "A" * 20 + "é", "A" * 22 + "\n"]
)
def test_texts_that_are_no_uuid(text: str):
    """Wrong length or alphabet, or bits that no 16 bytes give."""
    with pytest.raises(Corrupt):
        uuid_from_text(text)


def test_partition_metadata():
    """Kafka's two lines, with or without a last line end; a higher version is compatible."""
    topic_id = bytes(range(16))
    raw = encode_partition_metadata(topic_id)
    assert raw == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert decode_partition_metadata(raw) == decode_partition_metadata(raw + b"\n") == topic_id
    assert decode_partition_metadata(raw.replace(b"0\n", b"1\n")) == topic_id
    for bad in (
        b"",
        raw[:-1],
        raw.replace(b"topic_id", b"topicId"),
        raw + b"\nx",
        encode_partition_metadata(bytes(16)),
    ):
        with pytest.raises(Corrupt):
            decode_partition_metadata(bad)


def test_meta_properties():
    """What Kafka writes is read, what we write Kafka reads (plain key=value lines), a later version is refused."""
    meta = MetaProperties(cluster_id="5L6g3nShT-eMCtK--X86sw", node_id=3, directory_id="AAECAwQFBgcICQoLDA0ODw")
    assert meta.to_bytes() == (
        b"version=1\ncluster.id=5L6g3nShT-eMCtK--X86sw\nnode.id=3\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\n"
    )
    assert MetaProperties.from_bytes(meta.to_bytes()) == meta
    kafkas = (
        b"#\n#Thu Oct 24 19:33:01 UTC 2024\ncluster.id=5L6g3nShT-eMCtK--X86sw\n"
        b"directory.id=AAECAwQFBgcICQoLDA0ODw\nnode.id=3\nversion=1\n"
    )
    assert MetaProperties.from_bytes(kafkas) == meta
    with pytest.raises(NewerFormat):
        MetaProperties.from_bytes(meta.to_bytes().replace(b"version=1", b"version=2"))
    for bad in (b"", kafkas.replace(b"node.id=3\n", b""), kafkas.replace(b"node.id=3", b"node.id=x"), kafkas * 2):
        with pytest.raises(Corrupt):
            MetaProperties.from_bytes(bad)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.dictionaries(texts, texts, max_size=5))
def test_properties_round_trip(properties: dict[str, str]):
    """Any text, separators, white space and characters beyond the BMP among it."""
    assert parse_properties(format_properties(properties)) == properties


def test_properties_as_java_reads_them():
    """Separators, comments, escapes, continued lines."""
    raw = rb"""
# comment
 ! another
a=1
b : 2
c 3
d\=e=f\
   g
h
i\u0041=\u00e9\t\\
j = k=l
"""
    assert parse_properties(raw) == {
        "a": "1", "b": "2", "c": "3", "d=e": "fg", "h": "", "iA": "é\t\\", "j": "k=l",
    }  # fmt: skip


@given(st.binary(max_size=60) | st.text("ab=: \\u0\n#!\t", max_size=40).map(str.encode))
def test_hostile_files_raise_corrupt_only(data: bytes):
    """Any bytes into each reader. What it takes is a value: written again, it is read as the same."""
    kinds = (
        (MetaProperties.from_bytes, MetaProperties.to_bytes),
        (parse_properties, format_properties),
        (decode_partition_metadata, encode_partition_metadata),
        (lambda raw: decode_offsets(raw, "f"), encode_offsets),
    )
    for read, write in kinds:
        try:
            value = read(data)
        except Corrupt:
            continue
        assert read(write(value)) == value  # type: ignore[operator]
