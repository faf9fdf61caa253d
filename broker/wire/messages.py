"""The message classes, generated from `broker.wire.table`.

Names are `ProduceRequest`, `ProduceResponse`, `ProduceRequestTopic` (message, then structure). Records of internal
topics have Kafka's names (`OffsetCommitValue`).
"""

from __future__ import annotations

from broker.wire.generated.messages import *  # noqa: F403  # a front for one generated module, all of it
from broker.wire.message import Message as Message
from broker.wire.primitives import ZERO_UUID as ZERO_UUID
