"""Times the codec on one core: `python bench/codec.py`. Prints µs per call, best of 60 short runs.

The figures behind the "hot path" paragraphs of `broker/wire`; no server, no sockets.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from broker.wire import codec
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from broker.wire.framing import parse_request_header, request_frame, response_frame
from broker.wire.scatter import Records

BATCH = memoryview(bytes(16_384))
NAME = "orders-by-region"


def best_us(call: Callable[[], object]) -> float:
    """Microseconds per call: the best of 60 short runs, because other processes share the cores."""
    timer = timeit.Timer(call)
    number, took_s = timer.autorange()
    number = max(1, round(number * 0.004 / took_s))
    return min(timer.repeat(60, number)) / number * 1e6


def produce_request() -> m.ProduceRequest:
    partition = m.ProduceRequestPartition(index=3, records=BATCH)
    topic = m.ProduceRequestTopic(name=NAME, partition_data=[partition])
    return m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response() -> m.ProduceResponse:
    partition = m.ProduceResponsePartition(index=3, base_offset=123_456_789, log_start_offset=0)
    return m.ProduceResponse(responses=[m.ProduceResponseTopic(name=NAME, partition_responses=[partition])])


def fetch_request() -> m.FetchRequest:
    partition = m.FetchRequestPartition(partition=3, fetch_offset=123_456_789, partition_max_bytes=1 << 20)
    topic = m.FetchRequestTopic(topic=NAME, partitions=[partition])
    return m.FetchRequest(max_wait_ms=500, min_bytes=1, session_id=0, session_epoch=-1, topics=[topic])


def fetch_response() -> m.FetchResponse:
    partition = m.FetchResponsePartition(
        partition_index=3,
        high_watermark=123_456_999,
        last_stable_offset=123_456_999,
        log_start_offset=0,
        aborted_transactions=None,
        records=Records(len(BATCH), (BATCH,)),
    )
    return m.FetchResponse(responses=[m.FetchResponseTopic(topic=NAME, partitions=[partition])])


def metadata_response(topics: int, partitions: int) -> m.MetadataResponse:
    def partition(index: int) -> m.MetadataResponsePartition:
        return m.MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])

    return m.MetadataResponse(
        brokers=[m.MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
        topics=[
            m.MetadataResponseTopic(name=f"{NAME}-{n}", partitions=[partition(i) for i in range(partitions)])
            for n in range(topics)
        ],
    )


def rows() -> list[tuple[str, float, Callable[[], object]]]:
    """(what, floor in µs, call)."""

    def request(key: ApiKey, version: int, message: m.Message) -> Callable[[], object]:
        body = memoryview(b"".join(codec.encode_request(key, version, message)))  # type: ignore[arg-type]
        return lambda: codec.decode_request(key, version, body)

    def response(key: ApiKey, version: int, message: m.Message) -> Callable[[], object]:
        return lambda: codec.encode_response(key, version, message)

    frame = request_frame(0, 9, 7, "bench-client", [b""])
    header = memoryview(b"".join(frame)[4:])  # type: ignore[arg-type]
    return [
        ("request header v2, parse", 1, lambda: parse_request_header(header)),
        ("response frame, 60 B body", 1, lambda: response_frame(1, 7, [bytes(60)])),
        ("Produce v7 request, decode", 3, request(ApiKey.PRODUCE, 7, produce_request())),
        ("Produce v9 request, decode", 3, request(ApiKey.PRODUCE, 9, produce_request())),
        ("Produce v7 response, encode", 2, response(ApiKey.PRODUCE, 7, produce_response())),
        ("Produce v9 response, encode", 2, response(ApiKey.PRODUCE, 9, produce_response())),
        ("Fetch v11 request, decode", 4, request(ApiKey.FETCH, 11, fetch_request())),
        ("Fetch v12 request, decode", 4, request(ApiKey.FETCH, 12, fetch_request())),
        ("Fetch v11 response, encode", 3, response(ApiKey.FETCH, 11, fetch_response())),
        ("Fetch v12 response, encode", 3, response(ApiKey.FETCH, 12, fetch_response())),
        ("Metadata v5 response 100 x 10", 1000, response(ApiKey.METADATA, 5, metadata_response(100, 10))),
        ("Metadata v12 response 100 x 10", 1000, response(ApiKey.METADATA, 12, metadata_response(100, 10))),
    ]


def main() -> None:
    """Print one line per row."""
    for what, floor_us, call in rows():
        print(f"{what:32} {best_us(call):9.2f} µs   (at most {floor_us})")


if __name__ == "__main__":
    main()
