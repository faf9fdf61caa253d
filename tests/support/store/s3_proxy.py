"""The fault proxy: HTTP in front of an S3 server, with delays, faults, and a log of every request. Its own process.

`python tests/support/store/s3_proxy.py UPSTREAM_HOST:PORT LOG_FILE` prints the port it bound on 127.0.0.1 and serves
until its standard input closes. Knows nothing of this project; `tests.support.store.s3_servers` starts and controls it.
One thread a client connection, one kept connection to the server behind it; bodies go by splice(2) where no fault
touches them.

`POST /__proxy__/delay {"ms": 20}` · `POST /__proxy__/faults [rule, …]` (replaces all) · `GET /__proxy__/faults` (hits)
· `POST /__proxy__/seed 7` · `GET /__proxy__/counts` (since the start: requests by operation, hits by operation and
kind). A rule: `kind`, and which requests: `operation` (one of `OPERATIONS`), `method`, `match` (part of path and
query), `after` (let so many pass), `times` (-1: for ever), `rate` (the chance that it strikes), with `status`, `body`
and `seconds` where the kind takes them. The first that fits, and whose draw strikes, is applied. Draws come from one
seeded sequence an operation. A hit is counted when the fault took effect: a flip in an empty answer is none.

A request is in the log before the end of its answer leaves: whoever has an answer, or a closed connection, finds its
request there. One whose client gave up is in the log when the proxy is done with it. Kinds:
  status      answer `status` with `body` or an S3 error, nothing reaches the server
  reset       close with RST, nothing reaches the server
  reset_after the server does it; its answer is dropped and the connection closed with RST
  stall       hold for `seconds` before anything reaches the server, then close
  lost        the server does it; its answer is dropped and the connection closed
  late        answer 503 now; the request reaches the server `seconds` later
  slow        the server does it; the answer waits `seconds`
  empty200    the server does it; the answer is 200 with no headers and no body
  error200    nothing reaches the server; the answer is 200 with an <Error> body and an ETag
  garbage200  the server does it; the answer is 200 with a body that is no XML, and no ETag
  truncate    the server's answer, closed in mid-body
  short       the server's answer, in mid-body held for `seconds`, then closed
  flip        the server's answer with one bit of its body flipped
  flip_sent   the server gets the request with one bit of its body flipped
  wrong_range the server's answer to another range, labelled as that
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TextIO
from urllib.parse import parse_qsl, urlsplit

PIECE = 256 << 10
PIPE = 1 << 20
HEAD_MAX = 64 << 10
BODYLESS = (204, 304)
CHUNKS_END = bytes(bytearray(b"\r\n"))  # an object of its own: told from such bytes of a body by `is`
OPERATIONS = (
    "get_range",
    "get_whole",
    "get_if_changed",
    "head",
    "list",
    "put",
    "put_if_absent",
    "put_if_match",
    "create_multipart",
    "put_part",
    "complete_multipart",
    "abort_multipart",
    "delete",
    "delete_many",
    "other",  # of the bucket itself
)
CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    503: "SlowDown",
}


def operation_of(method: str, path: str, headers: dict[str, str]) -> str:
    """Which of `OPERATIONS` a request is."""
    parts = urlsplit(path)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "/" not in parts.path.strip("/"):
        if method == "GET":
            return "list" if "list-type" in query else "other"
        return "delete_many" if method == "POST" and "delete" in query else "other"
    if method == "GET" and "if-none-match" not in headers:
        return "get_range" if "range" in headers else "get_whole"
    if method == "PUT" and "partNumber" not in query:
        return next((name for key, name in _CONDITIONS if key in headers), "put")
    found = _PLAIN.get((method, next((key for key in ("uploads", "uploadId") if key in query), "")))
    return found or "other"


_CONDITIONS = (("if-match", "put_if_match"), ("if-none-match", "put_if_absent"))
_PLAIN = {
    ("GET", ""): "get_if_changed",
    ("HEAD", ""): "head",
    ("DELETE", ""): "delete",
    ("POST", "uploads"): "create_multipart",
    ("PUT", "uploadId"): "put_part",
    ("POST", "uploadId"): "complete_multipart",
    ("DELETE", "uploadId"): "abort_multipart",
}


@dataclass
class Rule:
    kind: str
    operation: str = ""
    method: str = ""
    match: str = ""
    after: int = 0
    times: int = -1
    rate: float = 1.0
    status: int = 503
    body: str = ""
    seconds: float = 0.0
    hits: int = 0

    def fits(self, operation: str, method: str, path: str) -> bool:
        wanted = self.operation in ("", operation) and self.method in ("", method)
        return wanted and self.times != 0 and self.match in path

    @property
    def name(self) -> str:
        """As the counts name it."""
        return f"{self.kind} {self.status}" if self.kind == "status" else self.kind


@dataclass
class State:
    upstream: tuple[str, int]
    log: TextIO
    delay_s: float = 0.0
    rules: list[Rule] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    draws: dict[str, random.Random] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        self.draws = {operation: random.Random(f"{seed}/{operation}") for operation in OPERATIONS}

    def rule_for(self, operation: str, method: str, path: str) -> Rule | None:
        with self.lock:
            self.requests[operation] += 1
            for rule in self.rules:
                if not rule.fits(operation, method, path):
                    continue
                if rule.after:
                    rule.after -= 1
                    continue
                if rule.rate < 1.0 and self.draws[operation].random() >= rule.rate:
                    continue
                rule.times -= 1
                return rule
        return None

    def struck(self, rule: Rule, operation: str) -> None:
        """The fault takes effect; called before anybody can notice."""
        with self.lock:
            rule.hits += 1
            self.hits[f"{operation} {rule.name}"] += 1

    def write_log(self, **entry: object) -> None:
        with self.lock:
            self.log.write(json.dumps(entry) + "\n")
            self.log.flush()


class Closed(Exception):
    """The other side went away."""


class Wire:
    """A socket with what was read beyond the last message."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(None)  # splice needs a blocking descriptor
        self.sock = sock
        self.extra = b""

    def head(self) -> tuple[str, list[tuple[str, str]]]:
        """A start line and headers, names as sent."""
        data = bytearray(self.extra)
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > HEAD_MAX:
                raise Closed
            piece = self.sock.recv(PIECE)
            if not piece:
                raise Closed
            data += piece
        self.extra = bytes(data[end + 4 :])
        start, *lines = data[:end].decode("latin-1").split("\r\n")
        return start, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]

    def pieces(self, length: int | None):
        """`length` bytes of body, or all until the other side closes."""
        buffer = memoryview(bytearray(PIECE))
        if self.extra and length != 0:
            take = self.extra if length is None else self.extra[:length]
            self.extra = self.extra[len(take) :]
            length = None if length is None else length - len(take)
            yield take
        while length is None or length > 0:
            got = self.sock.recv_into(buffer, PIECE if length is None else min(PIECE, length))
            if not got:
                if length is None:
                    return
                raise Closed
            length = None if length is None else length - got
            yield buffer[:got]

    def line(self) -> bytes:
        while (end := self.extra.find(b"\r\n")) < 0:
            piece = self.sock.recv(PIECE)
            if not piece:
                raise Closed
            self.extra += piece
        line, self.extra = self.extra[: end + 2], self.extra[end + 2 :]
        return line

    def splice_to(self, sink: socket.socket, length: int) -> None:
        """Move `length` bytes of body to `sink` without copying them through this process."""
        for piece in self.pieces(min(len(self.extra), length)):
            sink.sendall(piece)
            length -= len(piece)
        if not length:
            return
        out, into = os.pipe()
        try:
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE)
            while length:
                moved = os.splice(self.sock.fileno(), into, min(length, PIPE))
                if not moved:
                    raise Closed
                length -= moved
                while moved:
                    moved -= os.splice(out, sink.fileno(), moved)
        finally:
            os.close(out)
            os.close(into)

    def chunked(self):
        """A chunked body with its framing."""
        while True:
            line = self.line()
            yield line
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while (line := self.line()) != b"\r\n":
                    yield line
                yield CHUNKS_END
                return
            yield from self.pieces(size + 2)

    def body(self, headers: list[tuple[str, str]], *, until_close: bool):
        found = {name.lower(): value for name, value in headers}
        if "chunked" in found.get("transfer-encoding", ""):
            return self.chunked()
        if "content-length" in found:
            return self.pieces(int(found["content-length"]))
        return self.pieces(None if until_close else 0)


class Connection:
    """One client connection, one request after the other."""

    def __init__(self, state: State, client: socket.socket) -> None:
        self.state = state
        self.client = Wire(client)
        self.server: Wire | None = None
        self.entry: dict[str, object] | None = None
        self.began = 0.0

    def run(self) -> None:
        try:
            while self.one_request():
                pass
        except (Closed, OSError):
            pass
        finally:
            self.client.sock.close()
            self.drop_server()

    def drop_server(self) -> None:
        if self.server is not None:
            self.server.sock.close()
            self.server = None

    def upstream(self) -> Wire:
        if self.server is not None and select.select([self.server.sock], [], [], 0)[0]:
            self.drop_server()  # closed while idle
        if self.server is None:
            self.server = Wire(socket.create_connection(self.state.upstream, timeout=60))
        return self.server

    def one_request(self) -> bool:
        start, headers = self.client.head()
        method, path, _ = start.split(" ", 2)
        found = {name.lower(): value for name, value in headers}
        if "expect" in found:
            self.client.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            headers = [(name, value) for name, value in headers if name.lower() != "expect"]
        body = self.client.body(headers, until_close=False)
        if path.startswith("/__proxy__/"):
            return self.control(method, path, b"".join(map(bytes, body)))
        operation = operation_of(method, path, found)
        rule = self.state.rule_for(operation, method, path)
        self.began = time.monotonic()
        self.entry = entry = {
            "method": method,
            "operation": operation,
            "path": path,
            "range": found.get("range", ""),
            "fault": rule.kind if rule else "",
        }
        entry |= {"status": 0, "sent": int(found.get("content-length") or 0), "received": 0}
        entry["condition"] = found.get("if-match") or ("absent" if "if-none-match" in found else "")
        entry["amz"] = {name: value for name, value in found.items() if name.startswith("x-amz-")}
        try:
            keep = self.answer(rule, method, start, headers, body, entry)
            return keep and found.get("connection", "").lower() != "close"
        finally:
            self.note()

    def note(self) -> None:
        """Write the request into the log, once: before the end of its answer leaves, or when there will be none."""
        entry, self.entry = self.entry, None
        if entry is not None:
            self.state.write_log(**entry, ms=round((time.monotonic() - self.began) * 1000, 1))

    def answer(self, rule, method, start, headers, body, entry) -> bool:
        kind = rule.kind if rule else ""
        # A write counts as held back once all of it is here: whoever waits for the hit may kill its sender at once.
        held = b"".join(map(bytes, body)) if kind in _ANSWERED_HERE else b""
        if rule and kind not in _ON_BODIES:
            self.state.struck(rule, entry["operation"])
        if kind == "reset":
            return self.reset()
        if kind == "stall":
            time.sleep(rule.seconds)
            return False
        if kind in _ANSWERED_HERE:
            if kind == "late":
                threading.Thread(target=self.send_late, args=(rule.seconds, start, headers, held), daemon=True).start()
            time.sleep(self.state.delay_s)
            entry["status"] = 200 if kind == "error200" else rule.status
            return self.made_up(entry["status"], method, rule.body or error_body(entry["status"]))
        server = self.upstream()
        server.sock.sendall(head_bytes(start, headers))
        if entry["sent"] and kind == "flip_sent":
            self.state.struck(rule, entry["operation"])
            sent = bytearray(b"".join(map(bytes, body)))
            sent[len(sent) // 2] ^= 0x10
            server.sock.sendall(sent)
        elif entry["sent"]:
            self.client.splice_to(server.sock, entry["sent"])
        else:
            for piece in body:
                server.sock.sendall(piece)
        status_line, answer_headers = server.head()
        while status_line.split(" ", 2)[1] == "100":
            status_line, answer_headers = server.head()
        time.sleep(self.state.delay_s + (rule.seconds if kind == "slow" else 0))
        return self.relay(rule, method, server, status_line, answer_headers, entry)

    def relay(self, rule, method, server, status_line, headers, entry) -> bool:
        kind = rule.kind if rule else ""
        found = {name.lower(): value for name, value in headers}
        entry["status"] = int(status_line.split(" ", 2)[1])
        bodyless = method == "HEAD" or entry["status"] in BODYLESS
        framed = bodyless or "content-length" in found or "chunked" in found.get("transfer-encoding", "")
        # The server may close (moto always does); the client keeps its connection wherever it can tell the body's end.
        headers = [(name, value) for name, value in headers if name.lower() != "connection"]
        pieces = iter(()) if bodyless else server.body(headers, until_close=True)
        try:
            if kind in ("lost", "reset_after", "empty200", "garbage200"):
                for _ in pieces:
                    pass
                if kind == "reset_after":
                    return self.reset()
                text = "\0<<< not what was asked for" if kind == "garbage200" else ""
                return kind != "lost" and self.made_up(200, method, text)
            if kind == "wrong_range" and "content-range" in found:
                self.state.struck(rule, entry["operation"])
                headers = [(name, "bytes 7-8/9" if name.lower() == "content-range" else v) for name, v in headers]
            length = 0 if bodyless else int(found.get("content-length") or 0)
            if bodyless or found.get("content-length") == "0":
                self.note()
            self.client.sock.sendall(head_bytes(status_line, headers))
            return self.relay_body(rule, server, pieces, length, entry) and framed
        finally:
            if not framed or "close" in found.get("connection", "").lower():
                self.drop_server()

    def relay_body(self, rule, server, pieces, length, entry) -> bool:
        kind = rule.kind if rule else ""
        half = length // 2
        if length > PIECE and kind not in ("flip", "truncate", "short"):
            server.splice_to(self.client.sock, length - 1)
            entry["received"], pieces = length - 1, server.pieces(1)
        for piece in pieces:
            before = entry["received"]
            entry["received"] += len(piece)
            if kind == "flip" and before <= half < before + len(piece):
                self.state.struck(rule, entry["operation"])
                piece = bytearray(piece)
                piece[half - before] ^= 0x10
            if kind in ("truncate", "short") and entry["received"] > half:
                self.state.struck(rule, entry["operation"])
                self.client.sock.sendall(piece[: half - before])
                time.sleep(rule.seconds if kind == "short" else 0)
                self.drop_server()
                return False
            if entry["received"] == length or piece is CHUNKS_END:
                self.note()
            self.client.sock.sendall(piece)
        return True

    def reset(self) -> bool:
        self.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    def made_up(self, status: int, method: str, text: str) -> bool:
        body = b"" if method == "HEAD" else text.encode()
        # An error inside a 200 comes with all of a success's headers: only its body tells.
        etag = 'ETag: "00000000000000000000000000000000"\r\n' if status == 200 and "<Error>" in text else ""
        kind = "Content-Type: application/xml\r\n" if text.startswith("<?xml") else ""
        self.note()
        self.client.sock.sendall(
            f"HTTP/1.1 {status} Made-Up\r\nContent-Length: {len(body)}\r\n{etag}{kind}\r\n".encode() + body
        )
        return True

    def send_late(self, seconds: float, start: str, headers: list[tuple[str, str]], body: bytes) -> None:
        time.sleep(seconds)
        try:
            wire = Wire(socket.create_connection(self.state.upstream, timeout=60))
            wire.sock.sendall(head_bytes(start, headers) + body)
            status = int(wire.head()[0].split(" ")[1])
            wire.sock.close()
        except (OSError, Closed):
            status = 0  # it never arrived: the log says so, a test that waits for it must not wait in vain
        self.state.write_log(method="LATE", path=start.split(" ")[1], status=status)

    def control(self, method: str, path: str, body: bytes) -> bool:
        if path.endswith("/delay"):
            self.state.delay_s = json.loads(body)["ms"] / 1000
        elif path.endswith("/seed"):
            self.state.seed(json.loads(body))
        elif method == "POST":
            with self.state.lock:
                self.state.rules = [Rule(**rule) for rule in json.loads(body)]
        with self.state.lock:
            shown: object = [vars(rule) for rule in self.state.rules]
            if path.endswith("/counts"):
                shown = {"requests": self.state.requests, "hits": self.state.hits}
            answer = json.dumps(shown).encode()
        self.client.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        return True


_ANSWERED_HERE = ("status", "error200", "late")  # the server sees nothing, or nothing yet
_ON_BODIES = ("flip", "flip_sent", "truncate", "short", "wrong_range")  # these count themselves: there may be no body


def error_body(status: int) -> str:
    code = CODES.get(status, "InternalError")
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        "<Message>made up by the proxy</Message><RequestId>0</RequestId></Error>"
    )


def head_bytes(start: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [start, *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def main(upstream: str, log_path: str) -> None:
    host, _, port = upstream.rpartition(":")
    state = State((host, int(port)), open(log_path, "a", encoding="utf-8"))  # noqa: SIM115 - for the process's life
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=accept_for_ever, args=(listener, state), daemon=True).start()
    sys.stdin.read()  # until whoever started us is gone


def accept_for_ever(listener: socket.socket, state: State) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=Connection(state, client).run, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
