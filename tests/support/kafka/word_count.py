"""A Kafka Streams application: counts words of a topic in a store, and writes each new count to another topic.

Owns its source and its compilation by `javac`. Its store has a changelog, a compacted topic of the cluster.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.kafka.kafka_tools import class_path

MAIN: Final = "WordCount"
_COMPILES_S: Final = 120
# It prints its state changes, and for each store how many records a restore brought.
_SOURCE = """
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

public class WordCount {
    static synchronized void tell(String line) { System.out.println(line); System.out.flush(); }

    // WordCount BOOTSTRAP INPUT OUTPUT STATE_DIRECTORY REPLICAS SEGMENT_BYTES
    public static void main(String[] a) {
        Properties p = new Properties();
        p.put("application.id", "word-count");
        p.put("bootstrap.servers", a[0]);
        p.put("state.dir", a[3]);
        p.put("replication.factor", a[4]);
        p.put("repartition.purge.interval.ms", "500");
        p.put("commit.interval.ms", "200");
        p.put("statestore.cache.max.bytes", "0");
        p.put("default.key.serde", Serdes.StringSerde.class.getName());
        p.put("default.value.serde", Serdes.StringSerde.class.getName());
        p.put("processing.guarantee", "at_least_once");
        p.put("session.timeout.ms", "3000");
        p.put("heartbeat.interval.ms", "500");
        p.put("auto.offset.reset", "earliest");
        p.put("topic.internal.segment.bytes", a[5]);
        p.put("producer.batch.size", "1000");  // a batch fits a segment
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(a[1])
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream().mapValues(count -> Long.toString(count)).to(a[2]);
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


def compile_word_count(folder: Path) -> Path:
    """The folder with its classes; the test is skipped without `javac`."""
    if shutil.which("javac") is None:
        pytest.skip("a Streams application is compiled by javac, which is not here")
    source, classes = folder / f"{MAIN}.java", folder / "classes"
    source.write_text(_SOURCE)
    command = ["javac", "-J-Xmx256m", "-cp", class_path(), "-d", str(classes), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILES_S, check=False)
    assert done.returncode == 0, done.stderr
    return classes
