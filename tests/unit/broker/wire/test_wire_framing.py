"""Length prefix and headers: what goes out comes back, and answers wear the header their reader expects."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.apis import APIS, ApiKey, is_flexible, response_header_version
from broker.wire.errors import MalformedFrame
from broker.wire.framing import (
    RequestHeader,
    parse_request_header,
    parse_response_header,
    request_frame,
    response_frame,
)
from broker.wire.scatter import frame_size


@dataclass(frozen=True)
class Span:
    """A stand-in for a file range."""

    length: int


@given(
    st.sampled_from(list(APIS.values())),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=200),
    st.randoms(use_true_random=False),
)
def test_request_headers_round_trip(api, correlation_id: int, client_id: str | None, rng: random.Random) -> None:
    """A request frame's prefix is its length, and its header reads back with the body's offset."""
    version = rng.randint(api.advertised_min, api.version_max)
    frame = b"".join(request_frame(api.key, version, correlation_id, client_id, [b"body", b"more"]))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, offset = parse_request_header(memoryview(frame)[4:])
    assert header == RequestHeader(api.key, version, correlation_id, client_id)
    assert frame[4 + offset :] == b"bodymore"


@pytest.mark.parametrize(
    ("frame", "header", "offset"),
    [
        ("0012 0000 00000007 0003 666f6f", RequestHeader(18, 0, 7, "foo"), 13),
        ("0012 0003 00000007 0003 666f6f 00", RequestHeader(18, 3, 7, "foo"), 14),
        ("0012 0003 00000007 ffff 01 05 02 abcd", RequestHeader(18, 3, 7, None), 15),
        ("03e7 0001 00000007 0000", RequestHeader(999, 1, 7, ""), 10),  # unknown API: header 1 is all we can assume
        ("0012 7fff 00000007 ffff 00", RequestHeader(18, 0x7FFF, 7, None), 11),  # a version from the future
    ],
)
def test_headers_worked_by_hand(frame: str, header: RequestHeader, offset: int) -> None:
    """Header 1, header 2 with and without tagged fields, unknown APIs and versions."""
    assert parse_request_header(memoryview(bytes.fromhex(frame))) == (header, offset)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "0012",
        "0012 0000 00000007 00",
        "0012 0000 00000007 0005 666f6f",
        "0012 0000 00000007 fffe",
        "0012 0000 00000007 0002 c328",
        "0012 0003 00000007 ffff",
        "0012 0003 00000007 ffff 02 0100 0100",
    ],
)
def test_bad_headers_are_refused(frame: str) -> None:
    """Too short, a client id longer than the frame or not UTF-8, a missing or bad tagged section."""
    with pytest.raises(MalformedFrame):
        parse_request_header(memoryview(bytes.fromhex(frame)))


def test_header_versions() -> None:
    """Flexible versions answer under header 1, but ApiVersions always answers under header 0."""
    assert [response_header_version(ApiKey.FETCH, version) for version in (11, 12)] == [0, 1]
    assert {response_header_version(ApiKey.API_VERSIONS, version) for version in range(6)} == {0}
    assert [is_flexible(999, version) for version in (0, 32_767)] == [False, False]


@pytest.mark.parametrize("version", [11, 12])
def test_response_frames(version: int) -> None:
    """The prefix counts header, buffers and file ranges; small bodies are one buffer; only the first is copied."""
    span, view = Span(1000), memoryview(b"records")
    header_version = response_header_version(ApiKey.FETCH, version)
    frame = response_frame(header_version, -5, [b"head", view, span])
    assert len(frame) == 3
    assert frame[1] is view
    assert frame[2] is span
    assert int.from_bytes(frame[0][:4], "big") == frame_size(frame) - 4
    correlation_id, offset = parse_response_header(memoryview(frame[0])[4:], ApiKey.FETCH, version)
    assert correlation_id == -5
    assert frame[0][4 + offset :] == b"head"
    assert len(response_frame(header_version, 1, [b"only"])) == 1
    assert len(response_frame(header_version, 1, [view])) == 2
    assert len(response_frame(header_version, 1, [])) == 1


def test_short_responses_are_refused() -> None:
    """A client must not crash on half a header either."""
    for frame in (b"", b"abc", b"\x00\x00\x00\x01"):
        with pytest.raises(MalformedFrame):
            parse_response_header(memoryview(frame), ApiKey.FETCH, 12)
