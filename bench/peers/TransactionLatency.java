// End to end in transactions: one producer at a fixed rate that commits every so often, one consumer at read_committed.
// usage: kafka tool TransactionLatency.java BOOTSTRAP TOPIC RECORDS_PER_S SECONDS WARM_SECONDS COMMIT_MS RECORD_BYTES
// A record's latency counts from when it was due, so what waits for a commit under way counts. Prints one line:
// p50, p99, greatest in ms, transactions, mean ms of a commit; of what was due after the warm-up.
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class TransactionLatency {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        double rate = Double.parseDouble(args[2]), seconds = Double.parseDouble(args[3]), warm = Double.parseDouble(args[4]);
        long commitNs = (long) (Double.parseDouble(args[5]) * 1e6);
        int count = (int) ((warm + seconds) * rate), size = Integer.parseInt(args[6]);
        double[] latencies = new double[count];
        CountDownLatch assigned = new CountDownLatch(1), done = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "isolation.level", "read_committed");
            try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                List<TopicPartition> of = List.of(new TopicPartition(topic, 0));
                consumer.assign(of);
                consumer.seekToBeginning(of);
                consumer.position(of.get(0));
                assigned.countDown();
                for (int seen = 0; seen < count; ) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                        ByteBuffer value = ByteBuffer.wrap(record.value());
                        latencies[value.getInt()] = (System.nanoTime() - value.getLong()) / 1e6;
                        seen++;
                    }
                }
                done.countDown();
            }
        });
        reader.setDaemon(true);
        reader.start();
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "transactional.id", topic, "linger.ms", 0);
        int transactions = 0;
        long committing = 0;
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            if (!assigned.await(30, TimeUnit.SECONDS)) throw new IllegalStateException("no consumer");
            long began = System.nanoTime();
            for (int sent = 0; sent < count; ) {
                producer.beginTransaction();
                long until = System.nanoTime() + commitNs;
                for (int held = 0; sent < count; ) {
                    long due = began + (long) (sent * 1e9 / rate), now = System.nanoTime();
                    if (held > 0 && now >= until) break;
                    if (due > now) {
                        LockSupport.parkNanos(Math.min(due, held > 0 ? until : due) - now);
                        continue;
                    }
                    byte[] value = new byte[size];
                    ByteBuffer.wrap(value).putInt(sent).putLong(due);
                    producer.send(new ProducerRecord<>(topic, 0, null, value));
                    sent++;
                    held++;
                }
                long before = System.nanoTime();
                producer.commitTransaction();
                if (sent > warm * rate) {
                    committing += System.nanoTime() - before;
                    transactions++;
                }
            }
        }
        if (!done.await(30, TimeUnit.SECONDS)) throw new IllegalStateException("not all records came");
        double[] measured = Arrays.copyOfRange(latencies, (int) (warm * rate), count);
        Arrays.sort(measured);
        System.out.printf(Locale.ROOT, "%.3f %.3f %.3f %d %.3f%n", measured[measured.length / 2],
            measured[(int) (measured.length * 0.99)], measured[measured.length - 1], transactions, committing / 1e6 / transactions);
    }
}
