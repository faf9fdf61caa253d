"""docs/formats/broker-requests.md shows the bytes that the codec writes."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

from broker.wire.codec import decode_request
from broker.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatRequestUnfit

PAGE = Path(__file__).parents[4] / "docs" / "formats" / "broker-requests.md"


def test_the_worked_example_is_what_the_codec_reads() -> None:
    found = re.search(r"^```\n([0-9a-f \n]+)```", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    body = bytes.fromhex(found[1])
    unfit = BrokerHeartbeatRequestUnfit(UUID("a87b4df7-9603-45f9-977e-249343f5a96e"), [0])
    assert decode_request(63, 2, memoryview(body)) == BrokerHeartbeatRequest(2, 7, 41, unfit=[unfit])
