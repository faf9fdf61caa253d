"""Blocking GET and POST requests to a broker's HTTP port, one connection each."""

from __future__ import annotations

import http.client
import select
import time
from collections.abc import Callable
from typing import Final

from broker.config.addresses import show_address

_TIMEOUT_S: Final = 5.0
_SEAL_TIMEOUT_S: Final = 3700.0  # the broker's own timeout is an hour
_POLL_S: Final = 2.0


class HttpRefused(Exception):
    """No response, or one that is no success; the message says which."""


def get(host: str, port: int, path: str, timeout_s: float = _TIMEOUT_S) -> bytes:
    """The body of a 200. Raises HttpRefused otherwise."""
    return _request(host, port, "GET", path, None, timeout_s)


def post_json(host: str, port: int, path: str, body: str, waiting: Callable[[], None] | None = None) -> bytes:
    """The body of a success. Raises HttpRefused otherwise. Calls `waiting` every two seconds until the response
    arrives.
    """
    return _request(host, port, "POST", path, body, _SEAL_TIMEOUT_S, waiting)


def _request(
    host: str,
    port: int,
    method: str,
    path: str,
    body: str | None,
    timeout_s: float,
    waiting: Callable[[], None] | None = None,
) -> bytes:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    deadline_s = time.monotonic() + timeout_s
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        while waiting is not None and time.monotonic() < deadline_s:
            if select.select([connection.sock], [], [], _POLL_S)[0]:
                break
            waiting()
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as failed:
        raise HttpRefused(f"no answer from http://{show_address(host, port)}{path} ({failed})") from failed
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        text = data.decode(errors="replace").strip()
        raise HttpRefused(f"http://{show_address(host, port)}{path} answered {answer.status} {text}")
    return data
