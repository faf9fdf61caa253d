"""The message classes, by name: what handlers, the simulator and clients import.

Owns nothing; the classes are generated from `broker.wire.table`. Always true: names are `ProduceRequest`,
`ProduceResponse`, `ProduceRequestTopic` (message, then structure), and Kafka's own for the records of
`__consumer_offsets` (`OffsetCommitValue`).
"""

from __future__ import annotations

from broker.wire.generated.messages import *  # noqa: F403  # a front for one generated module, all of it
from broker.wire.message import Message as Message
from broker.wire.primitives import ZERO_UUID as ZERO_UUID
