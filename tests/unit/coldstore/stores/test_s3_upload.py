"""An upload over boto3 that fails: what it leaves behind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from coldstore.object_store import Upload
from coldstore.stores.s3_upload import put_object
from seams.files.disk import Buffer
from tests.support.collector import without_collector


class Piece(bytearray):
    """A buffer that can be watched."""


class Refusing:
    """A client that fails in mid-body, with an error that its own frame holds, as botocore's do."""

    def put_object(self, Body: Any, **_: Any) -> None:
        held = Body.read(), Body.read()  # the first of a trailed body is its frame's head
        assert all(held)
        try:
            raise EndpointConnectionError(endpoint_url="http://store")
        except EndpointConnectionError as error:
            kept = error
        raise kept


@pytest.mark.parametrize("crc32c", [None, 7], ids=["trailer", "header"])
def test_a_failed_upload_leaves_nothing_to_the_collector(crc32c: int | None) -> None:
    """Each try through an outage left a buffer of 1 MiB, and the file it was read from, to a full collection: a process
    that does little else may not have one in hours."""
    watched: list[weakref.ref[Piece]] = []

    def pieces() -> Iterator[Buffer]:
        piece = Piece(100)
        watched.append(weakref.ref(piece))
        yield piece
        yield piece

    body = Upload(200, crc32c, pieces, lambda: 7)
    with without_collector():
        with pytest.raises(EndpointConnectionError) as failed:
            put_object(Refusing(), {"Bucket": "b", "Key": "k"}, "k", body, {}, lambda: False)
        del failed
        assert [piece() for piece in watched] == [None]
