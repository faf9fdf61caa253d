"""The same as `committing` with the Java client: one program, started by `java Committing.java`, that tells what it was
told in lines.

Owns the program. Always true: it ends when its standard input does, so also when the tests' process is killed; none is
alive when the block is left that `java` was entered for. Must not know brokers.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from tests.support.clients.committing import PARTITIONS, Run
from tests.support.kafka.kafka_tools import SCRIPT, class_path

_ENDS_S: Final = 90
_SOURCE = """
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Committing {
    static volatile boolean ended;

    static void watch() {
        Thread watching = new Thread(() -> {
            try {
                if (System.in.read() >= 0) { ended = true; while (System.in.read() >= 0) { } }
            } catch (java.io.IOException gone) { }
            Runtime.getRuntime().halt(1);  // nobody hears us any more
        });
        watching.setDaemon(true);
        watching.start();
    }

    static synchronized void tell(String line) { System.out.println(line); System.out.flush(); }

    static void write(String boot, String topic, String patienceMs) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", boot); p.put("enable.idempotence", "true"); p.put("acks", "all");
        p.put("batch.size", "2048"); p.put("delivery.timeout.ms", patienceMs); p.put("request.timeout.ms", "15000");
        try (var producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            for (int n = 0; !ended; n++) {
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
            while (!ended) {
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
        watch();
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


@contextmanager
def _program(run: Run, folder: Path, what: str, patience_s: int) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end unless it ended already."""
    source = folder / what / "Committing.java"
    source.parent.mkdir()
    source.write_text(_SOURCE)
    command = ["java", "-Xmx256m", "-cp", f"{SCRIPT.parent / 'conf'}:{class_path()}", str(source), what]
    with (
        _said(folder, what).open("w") as said,
        subprocess.Popen(
            [*command, run.bootstrap, run.topic, run.group, str(patience_s * 1000)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as program,
    ):
        try:
            yield program
        finally:
            program.kill()


def _said(folder: Path, what: str) -> Path:
    return folder / f"{what}.err"


def _hear(run: Run, program: subprocess.Popen[str], said: Path, ends: threading.Event) -> None:
    """Until it ended, which it is told to when `ends` is set; raises for what went wrong in it."""
    assert program.stdout is not None
    threading.Thread(target=_stop, args=(program, ends), daemon=True).start()
    for line in program.stdout:
        if line.startswith(("acked ", "read ", "committed ", "failed ")):
            _told(run, line)
    assert program.wait(_ENDS_S) == 0, said.read_text()[-2000:]


def _stop(program: subprocess.Popen[str], ends: threading.Event) -> None:
    ends.wait()
    assert program.stdin is not None
    with suppress(BrokenPipeError):
        program.stdin.write("end\n")
        program.stdin.flush()


@contextmanager
def java(run: Run, folder: Path, delivery_timeout_s: int = 60) -> Iterator[tuple[subprocess.Popen[str], ...]]:
    """Both programs, as `Run.begin`, until `run.end`; who leaves earlier kills them."""
    with ExitStack() as programs:
        write, read = (
            programs.enter_context(_program(run, folder, what, delivery_timeout_s)) for what in ("write", "read")
        )
        run.begin(
            partial(_hear, program=write, said=_said(folder, "write"), ends=run.writing_ends),
            partial(_hear, program=read, said=_said(folder, "read"), ends=run.reading_ends),
        )
        yield write, read
