"""Send buffers of the kernel that are wider than configured, for connections that fetch much.

Owns how many there are. Always true: at most `connections_max` at once, each of at most `WIDE_BYTES`; a connection has
one from the first file range its socket had no room for until it ends. Must not know what is sent.

A reader of 1 MB answers needs the broker half as often: the kernel keeps more, and sends it while the reader takes it.
It keeps references to pages of the page cache, no copies; what a reader that takes nothing can hold that way is 416 KiB
(the kernel doubles what it is asked for), all of them together 256 MiB. Beyond that, and where `net.core.wmem_max` is
smaller, buffers are as large as they may be and more turns are needed, nothing else.

Not larger: where an answer fits whole, eight readers that only read cost 0.73 s/GB of CPU, theirs included, instead of
0.57, and on a busy machine one that works on what it takes had 1 MB after 8 ms instead of 2 to 4 (under BBR and Reno).
"""

from __future__ import annotations

import asyncio
from typing import Final

from seams.net import Net

WIDE_BYTES: Final = 208 << 10
"""Asked of the kernel; the usual `net.core.wmem_max`."""


class SendRoom:
    """One for all connections of a server. `connections_max` 0: each keeps the buffer it was made with."""

    def __init__(self, net: Net, connections_max: int) -> None:
        self._net = net
        self._free = connections_max

    def widen(self, transport: asyncio.WriteTransport) -> bool:
        """Give this connection a wide buffer; False when too many have one. `give_back` at its end."""
        if not self._free:
            return False
        self._free -= 1
        self._net.widen(transport, WIDE_BYTES)
        return True

    def give_back(self) -> None:
        """A connection with a wide buffer ended."""
        self._free += 1
