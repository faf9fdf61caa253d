"""Configuration as people write it: properties files, units, addresses, bucket URLs, topic names: a value or a refusal.

What was read is written and read again as the same; both rules of topic names agree. Input: what it is (one byte),
then the text.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.config.definitions import BROKER, TOPIC
from broker.config.network.addresses import parse_address, show_address
from broker.config.resolve import resolve
from broker.config.sources import ConfigError
from broker.config.topic.topic_config import InvalidTopicName, check_topic_name
from broker.config.units import parse_duration_ms, parse_size, show_duration
from coldstore.url import parse_bucket_url
from logformat.errors import InvalidRequest
from logformat.properties import format_properties, properties_in
from logformat.values import is_topic_name

_DEFINITIONS = sorted((*BROKER.values(), *TOPIC.values()), key=lambda definition: definition.name)


def seeds() -> list[bytes]:
    texts = {
        0: ("a=b\n# no\nc : d\\\n  e\nf\\u00e9=\\t\n", "key\\ with=1", "\\", "a=\\ud83d\\ude00"),
        1: ("listeners=PLAINTEXT://127.0.0.1:9092\nlog.segment.bytes=64MiB\nlog.retention.ms=1h30m\n", "node.id=3\n"),
        2: ("64MiB", "1.5GiB", "10 KB", "7", "1h30m", "250ms", "0.5d"),
        3: ("PLAINTEXT://host:9092", "[::1]:0", ":65535", "[fe80::1%eth0]:1", "localhost:9092"),
        4: ("file:///tmp/a%20b", "s3://bucket/p/q?endpoint=http://127.0.0.1:9000&region=eu&path_style=true"),
        5: ("events", "a.b_c-d", ".", "..", "é", "x" * 250),
        6: ("60000", "true", "delete,compact", "-1", "1e3", "0:1,2:3"),
    }
    return [bytes([kind]) + text.encode() for kind, many in texts.items() for text in many]


def run(data: bytes) -> None:
    kind = data[0] % len(_KINDS) if data else 0
    try:
        _KINDS[kind](data[1:].decode("utf-8", "replace"))
    except InvalidRequest:
        return


def _properties(text: str) -> None:
    pairs = dict(properties_in(text))
    assert dict(properties_in(format_properties(pairs).decode())) == pairs


def _broker(text: str) -> None:
    try:
        resolve({}, [], {}, text)
    except ConfigError as refused:
        assert str(refused)


def _units(text: str) -> None:
    for parse in parse_size, parse_duration_ms:
        try:
            value = parse(text)
        except InvalidRequest:
            continue
        assert value >= 0
        if parse is parse_duration_ms and value < 2**63:
            assert parse_duration_ms(show_duration(value)) == value


def _address(text: str) -> None:
    address = parse_address(text, "listeners")
    assert 0 <= address.port <= 65535 and isinstance(address.loopback, bool)
    if not address.every_interface:
        again = parse_address(f"{address.name}://{show_address(address.host, address.port)}", "listeners")
        assert again == address, (again, address)


def _url(text: str) -> None:
    url = parse_bucket_url(text)
    assert parse_bucket_url(url.printed()) == url, url


def _topic_name(text: str) -> None:
    try:
        check_topic_name(text)
    except InvalidTopicName:
        assert not is_topic_name(text), text
        return
    assert is_topic_name(text), text


def _value(text: str) -> None:
    """The first character picks the config."""
    definition = _DEFINITIONS[ord(text[0]) % len(_DEFINITIONS)] if text else _DEFINITIONS[0]
    value = definition.parse(definition.with_units(text[1:]))
    assert value is None or isinstance(value, bool | int | float | str | tuple)


_KINDS: tuple[Callable[[str], None], ...] = (_properties, _broker, _units, _address, _url, _topic_name, _value)
