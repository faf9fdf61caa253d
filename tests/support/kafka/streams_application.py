"""A Kafka Streams application: counts words of a topic in a store, or joins two topics within a window.

Owns its source and its compilation by `javac`. Its stores have changelogs, compacted topics of the cluster. With
`exactly_once_v2` it reads, writes and commits its offsets in transactions (KIP-447).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.kafka.kafka_tools import class_path

MAIN: Final = "StreamsApplication"
_COMPILES_S: Final = 120
# It prints its state changes, and for each store how many records a restore brought.
_SOURCE = """
import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

public class StreamsApplication {
    static synchronized void tell(String line) { System.out.println(line); System.out.flush(); }

    // StreamsApplication count|join GUARANTEE BOOTSTRAP INPUT[,INPUT] OUTPUT STATE_DIRECTORY REPLICAS SEGMENT_BYTES
    public static void main(String[] a) {
        Properties p = new Properties();
        p.put("application.id", a[0].equals("count") ? "word-count" : "joined");
        p.put("processing.guarantee", a[1]);
        p.put("bootstrap.servers", a[2]);
        p.put("state.dir", a[5]);
        p.put("replication.factor", a[6]);
        p.put("repartition.purge.interval.ms", "500");
        p.put("commit.interval.ms", "200");
        p.put("statestore.cache.max.bytes", "0");
        p.put("default.key.serde", Serdes.StringSerde.class.getName());
        p.put("default.value.serde", Serdes.StringSerde.class.getName());
        p.put("session.timeout.ms", "3000");
        p.put("heartbeat.interval.ms", "500");
        p.put("auto.offset.reset", "earliest");
        p.put("topic.internal.segment.bytes", a[7]);
        p.put("producer.batch.size", "1000");  // a batch fits a segment
        p.put("producer.transaction.timeout.ms", "6000");  // a life that lost its state has another transactional id
        StreamsBuilder builder = new StreamsBuilder();
        if (a[0].equals("count")) {
            builder.<String, String>stream(a[3])
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word)
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
                .toStream().mapValues(count -> Long.toString(count)).to(a[4]);
        } else {
            String[] inputs = a[3].split(",");
            KStream<String, String> right = builder.stream(inputs[1]);
            builder.<String, String>stream(inputs[0])
                .join(right, (x, y) -> x + "+" + y, JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(5)))
                .to(a[4]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), p);
        streams.setStateListener((now, before) -> tell("state " + now));
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            public void onRestoreStart(TopicPartition at, String store, long from, long to) {
                tell("restores " + at + " " + from + " " + to);
            }
            public void onBatchRestored(TopicPartition at, String store, long end, long count) { }
            public void onRestoreEnd(TopicPartition at, String store, long count) {
                tell("restored " + at + " " + count);
            }
        });
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .SHUTDOWN_CLIENT;
        });
        streams.start();
    }
}
"""


def compile_application(folder: Path) -> Path:
    """The folder with its classes; the test is skipped without `javac`."""
    if shutil.which("javac") is None:
        pytest.skip("a Streams application is compiled by javac, which is not here")
    source, classes = folder / f"{MAIN}.java", folder / "classes"
    source.write_text(_SOURCE)
    command = ["javac", "-J-Xmx256m", "-cp", class_path(), "-d", str(classes), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILES_S, check=False)
    assert done.returncode == 0, done.stderr
    return classes
