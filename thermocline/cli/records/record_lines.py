"""A consumed record as bytes for stdout: by kcat's `-f`, or as a JSON line.

The JSON names are a contract: `topic partition offset timestamp timestamp_type key value headers`. JSON lines are UTF-8
and lossless: UTF-8 bytes are a string, other bytes the object `{"base64": "…"}`, null is null.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from thermocline.cli.terminal.outcome import CommandFailed

if TYPE_CHECKING:
    from confluent_kafka import Message

_TIMESTAMP_TYPES = {0: None, 1: "CreateTime", 2: "LogAppendTime"}  # confluent-kafka's numbers, Kafka's names


def json_record(message: Message) -> bytes:
    """One JSON object and a newline; `timestamp` in ms since 1970, headers as [name, value] in order."""
    kind, timestamp = message.timestamp()
    shown = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
        "timestamp_type": _TIMESTAMP_TYPES[kind],
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [[name, _text(value)] for name, value in _headers(message)],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    """The headers in order. Raises CommandFailed when a name is not UTF-8, which the client library cannot read."""
    try:
        return cast(
            "list[tuple[str, bytes | None]]", message.headers() or []
        )  # the stub also has types that only a producer gives
    except SystemError as failed:
        if not isinstance(failed.__cause__, UnicodeDecodeError):
            raise
        where = f"{message.topic()}-{message.partition()} offset {message.offset()}"
        raise CommandFailed(
            f"{where}: a header's name is not UTF-8, which the client library cannot read; continue with -o "
            f"{(message.offset() or 0) + 1}, or look at it with `thermocline log dump`"
        ) from failed


def _text(data: bytes | str | None) -> str | dict[str, str] | None:
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


_TOKENS: dict[str, Callable[[Any], bytes]] = {
    "%s": lambda m: m.value() or b"",
    "%k": lambda m: m.key() or b"",
    "%o": lambda m: b"%d" % m.offset(),
    "%p": lambda m: b"%d" % m.partition(),
    "%t": lambda m: m.topic().encode(),
    "%T": lambda m: b"%d" % m.timestamp()[1],
    "%S": lambda m: b"-1" if m.value() is None else b"%d" % len(m.value()),
    "%K": lambda m: b"-1" if m.key() is None else b"%d" % len(m.key()),
    "%h": lambda m: b",".join(name.encode() + b"=" + (value or b"") for name, value in _headers(m)),
    "%%": lambda m: b"%",
    "\\n": lambda m: b"\n",
    "\\t": lambda m: b"\t",
    "\\\\": lambda m: b"\\",
}
_TOKEN = re.compile("|".join(re.escape(token) for token in _TOKENS))


def renderer(template: str) -> Callable[[Message], bytes]:
    """A function from a record to its bytes, by kcat's `-f`."""
    parts: list[Callable[[Any], bytes]] = []
    at = 0
    for found in _TOKEN.finditer(template):
        parts += _literal(template[at : found.start()])
        parts.append(_TOKENS[found[0]])
        at = found.end()
    parts += _literal(template[at:])
    if parts == [_TOKENS["%s"], _TOKENS["\\n"]]:
        return lambda message: (message.value() or b"") + b"\n"  # the default format, without the loop
    return lambda message: b"".join(part(message) for part in parts)


def _literal(text: str) -> list[Callable[[Any], bytes]]:
    return [lambda message: text.encode()] if text else []
