"""Format of root objects, a small JSON envelope around one typed content, and the errors of roots.

`cluster.json`, `lease.json` and every manifest have this envelope (docs/formats/manifest.md). A decoded root has a
known format, a version, an epoch, a ring with the commits of exactly its last 32 versions, and a correct checksum
(older roots have none). Each kind of root numbers its own formats. A newer format is refused, so it is never
overwritten. A root has at most 64 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec
from crc32c import crc32c

from coldstore.encryption.marker import refuse_encrypted
from coldstore.object_store import Got
from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable
from logformat.values import NewerFormat
from seams.typed_json import decoder_of

RING_LENGTH: Final = 32
ROOT_BYTES_MAX: Final = 64 * 1024
# Version, epoch, CRC and 32 ring entries of at most [19 digits, "32 hex"] with their punctuation: 32 × 57 + ~170.
ENVELOPE_BYTES_MAX: Final = 2048

T = TypeVar("T", bound=msgspec.Struct)

_COMMIT_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class RootTooLarge(InvalidRequest):
    """The content does not fit a root. Parts of it have to be moved to pages first."""


class RootMissing(InvalidRequest):
    """There is no root under this key, and the caller did not ask to create one."""


class RootVanished(Fenced):
    """A root that this process has read is gone, because its topic was deleted. The caller has to stop using it."""


class NotClaimed(InvalidRequest):
    """The root has a lower epoch than the commit. It has to be claimed first."""


class Unsettled(Retryable):
    """The time ended, and an attempt may still be stored. The caller may commit again, because edits are idempotent. It
    must not delete an object that the attempt names."""


class _Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    format_version: int
    version: int
    epoch: int
    ring: tuple[tuple[int, str], ...]
    content: msgspec.Raw
    crc32c: int | None = None  # of the bytes without this field; a copy loses the store's checksum


class _FormatOnly(msgspec.Struct, frozen=True):
    format_version: int


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_FORMAT_ONLY: Final = msgspec.json.Decoder(_FormatOnly)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class RootFormat(msgspec.Struct, Generic[T], frozen=True):
    """Formats of one kind of root: `version` is the newest; `contents` has the content type of each readable format.

    `needed` returns the oldest format that keeps every field of a content; if it is None, that is the newest format. A
    root is written in that format, but not in an older format than before. An older program thus refuses only roots
    with fields that it does not know."""

    version: int
    contents: Mapping[int, type[T]]
    needed: Callable[[T], int] | None = None

    @classmethod
    def first(cls, content_type: type[T]) -> RootFormat[T]:
        """The formats of a kind that has only one."""
        return cls(1, {1: content_type})


class Root(msgspec.Struct, Generic[T], frozen=True):
    """One version of a root that the store returned or accepted. `ring`: (version, commit id), oldest first.
    `format_version`: the format of its bytes."""

    version: int
    epoch: int
    ring: tuple[tuple[int, str], ...]
    content: T
    etag: str
    format_version: int = 1

    def commit_at(self, version: int) -> str | None:
        """Id of the commit that made `version`; None if the ring does not contain it."""
        if not self.ring or not self.ring[0][0] <= version <= self.version:
            return None
        return self.ring[version - self.ring[0][0]][1]


class RootCodec(Generic[T]):
    """Encodes and decodes one kind of root. `kind` is a content type if the kind has only one format.

    `validate` gets every root that was read, and raises Corrupt for impossible content."""

    def __init__(self, kind: type[T] | RootFormat[T], validate: Callable[[Root[T]], None] | None = None) -> None:
        root_format = kind if isinstance(kind, RootFormat) else RootFormat.first(kind)
        self._validate = validate
        self._version = root_format.version
        self._needed = root_format.needed
        self._contents: dict[int, msgspec.json.Decoder[T]] = {
            version: decoder_of(content_type) for version, content_type in root_format.contents.items()
        }

    def content_size(self, content: T) -> int:
        """Bytes of `content` in a root; with `ENVELOPE_BYTES_MAX` they must stay within `ROOT_BYTES_MAX`."""
        return len(_ENCODER.encode(content))

    def format_of(self, content: T, before: int = 1) -> int:
        """The format of `content` when it replaces a root of format `before`."""
        return self._version if self._needed is None else max(self._needed(content), before)

    def encode(self, version: int, epoch: int, ring: tuple[tuple[int, str], ...], content: T, before: int = 1) -> bytes:
        """The bytes of a root. `before`: the format of the root that it replaces. Raises RootTooLarge above 64 KiB."""
        raw = msgspec.Raw(_ENCODER.encode(content))
        envelope = _Envelope(self.format_of(content, before), version, epoch, ring, raw)
        data = _ENCODER.encode(msgspec.structs.replace(envelope, crc32c=self._crc_of(envelope)))
        if len(data) > ROOT_BYTES_MAX:
            raise RootTooLarge(
                f"root of {len(data)} bytes, but at most {ROOT_BYTES_MAX} are allowed; move entries to pages"
            )
        return data

    def decode(self, key: str, got: Got) -> Root[T]:
        """The root in a response. Raises NewerFormat, Corrupt with the key and the reason, KeyRefused for an encrypted
        root."""
        refuse_encrypted(key, got.data)
        if got.size > ROOT_BYTES_MAX or len(got.data) != got.size:
            raise Corrupt(f"root {key} has {got.size} bytes, but at most {ROOT_BYTES_MAX} are allowed")
        try:
            written_in = _FORMAT_ONLY.decode(got.data).format_version
            if written_in > self._version:
                raise NewerFormat(
                    f"root {key} has format {written_in}, but this version knows {self._version}; upgrade"
                )
            reader = self._contents.get(written_in)
            if reader is None:
                raise Corrupt(f"root {key} has the unknown format {written_in}")
            envelope = _ENVELOPE.decode(got.data)
            content = reader.decode(envelope.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
            raise Corrupt(f"root {key} is not readable: {broken}; restore an earlier version of the object") from broken
        if envelope.crc32c is not None and envelope.crc32c != self._crc_of(envelope):
            raise Corrupt(
                f"root {key} fails its CRC: it is not what was written; restore an earlier version of the object"
            )
        _check_envelope(key, envelope)
        root = Root(envelope.version, envelope.epoch, envelope.ring, content, got.etag, written_in)
        if self._validate is not None:
            self._validate(root)
        return root

    def is_as_written(self, data: bytes) -> bool:
        """Whether bytes that `decode` accepted are exactly the bytes that this program writes.

        A damaged field name is detected by this check only: `decode` takes it for an unknown field, and the real field
        for absent."""
        return _ENCODER.encode(_ENVELOPE.decode(data)) == data

    def _crc_of(self, envelope: _Envelope) -> int:
        unsummed = _ENCODER.encode(msgspec.structs.replace(envelope, crc32c=None))
        value: int = crc32c(unsummed)
        return value


def _check_envelope(key: str, envelope: _Envelope) -> None:
    version, ring = envelope.version, envelope.ring
    if version < 1 or envelope.epoch < 0:
        raise Corrupt(f"root {key} has version {version}, epoch {envelope.epoch}: out of range")
    expected = range(version - min(version, RING_LENGTH) + 1, version + 1)
    if [v for v, _ in ring] != list(expected) or not all(_COMMIT_ID.fullmatch(c) for _, c in ring):
        raise Corrupt(f"root {key} at version {version} has a broken ring of commits")
