"""The same as `committing` with the Java client: one program, started by `java Committing.java`, that tells what it was
told in lines. Owns the program. Must not know brokers."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Final

from tests.support.committing import PARTITIONS, Run
from tests.support.kafka_tools import SCRIPT, class_path

_ENDS_S: Final = 90
_SOURCE = """
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Committing {
    static synchronized void tell(String line) { System.out.println(line); System.out.flush(); }

    static void write(String boot, String topic, String patienceMs) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", boot); p.put("enable.idempotence", "true"); p.put("acks", "all");
        p.put("batch.size", "2048"); p.put("delivery.timeout.ms", patienceMs); p.put("request.timeout.ms", "15000");
        try (var producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            for (int n = 0; System.in.available() == 0; n++) {
                int number = n;
                producer.send(new ProducerRecord<>(topic, n % %PARTITIONS%, null, "" + n), (m, e) ->
                    tell(e == null ? "acked " + number + " " + m.partition() + " " + m.offset() : "failed " + e));
                Thread.sleep(10);
            }
        }
    }

    static void read(String boot, String topic, String group) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", boot); p.put("group.id", group); p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false"); p.put("default.api.timeout.ms", "30000");
        try (var consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (System.in.available() == 0) {
                Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                for (var r : consumer.poll(Duration.ofMillis(200))) {
                    tell("read " + r.partition() + " " + r.offset() + " " + r.value());
                    ends.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                }
                if (ends.isEmpty()) continue;
                try { consumer.commitSync(ends); }
                catch (org.apache.kafka.common.KafkaException again) { continue; }
                StringBuilder line = new StringBuilder("committed");
                ends.forEach((at, end) -> line.append(" ").append(at.partition()).append(" ").append(end.offset()));
                tell(line.toString());
            }
        }
    }

    public static void main(String[] a) throws Exception {
        if (a[0].equals("write")) write(a[1], a[2], a[4]); else read(a[1], a[2], a[3]);
    }
}
""".replace("%PARTITIONS%", str(PARTITIONS))


def _told(run: Run, line: str) -> None:
    what, *rest = line.split()
    assert what != "failed", line
    numbers = [int(word) for word in rest]
    match what:
        case "acked":
            run.sent = max(run.sent, numbers[0] + 1)
            run.acknowledged[numbers[0]] = (numbers[1], numbers[2])
        case "read":
            run.came(numbers[0], numbers[1], b"%d" % numbers[2])
        case "committed":
            run.took(dict(zip(numbers[::2], numbers[1::2], strict=True)))


def _program(run: Run, folder: Path, what: str, ends: threading.Event, patience_s: int) -> None:
    """Until `ends`; raises for what went wrong in it."""
    source = folder / what / "Committing.java"
    source.parent.mkdir()
    source.write_text(_SOURCE)
    command = ["java", "-Xmx256m", "-cp", f"{SCRIPT.parent / 'conf'}:{class_path()}", str(source), what]
    with (
        (folder / f"{what}.err").open("w") as said,
        subprocess.Popen(
            [*command, run.bootstrap, run.topic, run.group, str(patience_s * 1000)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as program,
    ):
        assert program.stdin is not None and program.stdout is not None
        stopper = threading.Thread(target=_stop, args=(program, ends), daemon=True)
        stopper.start()
        for line in program.stdout:
            if line.startswith(("acked ", "read ", "committed ", "failed ")):
                _told(run, line)
        assert program.wait(_ENDS_S) == 0, (folder / f"{what}.err").read_text()[-2000:]


def _stop(program: subprocess.Popen[str], ends: threading.Event) -> None:
    ends.wait()
    assert program.stdin is not None
    program.stdin.write("end\n")
    program.stdin.close()


def begin_java(run: Run, folder: Path, delivery_timeout_s: int = 60) -> None:
    """Both programs, as `Run.begin`."""
    run.begin(
        lambda run: _program(run, folder, "write", run.writing_ends, delivery_timeout_s),
        lambda run: _program(run, folder, "read", run.reading_ends, delivery_timeout_s),
    )
