"""Subject of a certificate as Java writes it (`X500Principal.getName()`, RFC 2253): the principal's name in Kafka.

The last part of the name comes first (`CN=…`). A type is its keyword in RFC 2253. A type without a keyword is its
number, and its value is `#` and the DER in hexadecimal. Escapes are as in Java. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "latin-1",  # PrintableString
    0x14: "latin-1",  # T61String, as Java reads it
    0x16: "latin-1",  # IA5String
    0x1B: "latin-1",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANKS: Final = " \r"
_OID_BYTES_MAX: Final = 1024
"""The time for the text grows with the square of the length, and Python shows no number of more than 4 300 digits."""
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0


class MalformedName(ValueError):
    """The bytes are not a certificate, or its subject is not a name."""


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises MalformedName."""
    signed = _only(_only(certificate, _SEQUENCE), _SEQUENCE, more=True)
    fields = list(_values(signed))
    if fields and fields[0][0] == _VERSION:
        fields = fields[1:]
    if len(fields) < 5 or fields[4][0] != _SEQUENCE:
        raise MalformedName("the certificate has no subject")
    return name_text(fields[4][1])


def name_text(name: bytes) -> str:
    """The text of a Name, from its DER content."""
    return ",".join(_part_text(part) for tag, part in reversed(list(_values(name))) if tag == _SET)


def _part_text(part: bytes) -> str:
    return "+".join(_pair_text(pair) for _, pair in _values(part))


def _pair_text(pair: bytes) -> str:
    found = list(_values(pair))
    if len(found) != 2 or found[0][0] != _OID:
        raise MalformedName("a part of the name is not a pair of type and value")
    kind, (tag, value) = _oid_text(found[0][1]), found[1]
    keyword, encoding = _KEYWORDS.get(kind), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        whole = pair[len(pair) - len(value) - _header_size(len(value)) :]
        return f"{keyword or kind}=#{whole.hex()}"
    return f"{keyword}={_escaped(value.decode(encoding, 'replace'))}"


def _escaped(text: str) -> str:
    inner = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in text)
    lead = len(inner) - len(inner.lstrip(_BLANKS))
    trail = len(inner.rstrip(_BLANKS))
    return "".join(f"\\{char}" if at < lead or at >= trail else char for at, char in enumerate(inner))


def _oid_text(data: bytes) -> str:
    if len(data) > _OID_BYTES_MAX:
        raise MalformedName(f"a type in the name has {len(data)} bytes, and {_OID_BYTES_MAX} are allowed")
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers or data[-1] >= 0x80:
        raise MalformedName("a type in the name is not an object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _only(data: bytes, tag: int, *, more: bool = False) -> bytes:
    """The content of the first value. Unless `more`, it has to be the only value."""
    found = list(_values(data)) if not more else [next(_values(data), (0, b""))]
    if len(found) != 1 or found[0][0] != tag:
        raise MalformedName(f"a value with tag {tag:#x} was expected")
    return found[0][1]


def _header_size(length: int) -> int:
    return 2 if length < 0x80 else 2 + (length.bit_length() + 7) // 8


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each DER value in the bytes."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise MalformedName("a value is cut off")
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size])
            at += size
        if at + length > len(data):
            raise MalformedName("a value is cut off")
        yield tag, data[at : at + length]
        at += length
