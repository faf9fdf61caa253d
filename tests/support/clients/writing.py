"""A producer that is told what to write and when to wait, and remembers what it was told is safe.

Owns one idempotent librdkafka producer with acks=all. Always true: `acknowledged` is in the order of the log. Must not
know brokers.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer


class Writing:
    """To one partition."""

    def __init__(self, bootstrap: str, topic: str, partition: int = 0) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self._topic, self._partition = topic, partition
        # A stopped broker answers nothing and breaks no connection: the client waits for its own time-out.
        timeouts = {"socket.timeout.ms": 10_000, "request.timeout.ms": 5_000}
        quick = {"reconnect.backoff.max.ms": 300, "retry.backoff.ms": 50, "log_level": 0}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                **timeouts,
                **quick,
            }
        )

    def write(self, mark: str, count: int) -> None:
        """Give `count` records, and wait for none."""
        for number in range(count):
            value = f"{mark} {number}".encode()

            def told(error: object, _: object, value: bytes = value) -> None:
                if error is None:
                    self.acknowledged.append(value)
                else:
                    self.failed.append(str(error))

            self._producer.produce(self._topic, value, partition=self._partition, on_delivery=told)
            self._producer.poll(0)

    def flush(self) -> None:
        """Until all of it is acknowledged; KafkaException when some was given up, or takes longer than a minute."""
        left = self._producer.flush(60)
        if left or self.failed:
            raise KafkaException(f"{left} records left, failed: {self.failed[:3]}")
