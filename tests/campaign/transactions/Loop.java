// A loop of Apache Kafka's Java client (see __init__.py): java Loop ACCESS.properties INPUT OUTPUT GROUP ID LIFE ABORTED
import java.io.FileReader;
import java.time.Duration;
import java.util.*;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Loop {
    static final int RECORDS_MAX = 1000, CANNOT_GO_ON = 3;
    static final long WAIT_NS = 200_000_000;
    static volatile boolean ending;

    static String source, sink, name, life;
    static int aborted, transactions;
    static boolean hasRebalanced;
    static KafkaProducer<byte[], byte[]> producer;
    static KafkaConsumer<byte[], byte[]> consumer;

    static void watch() {
        Thread watching = new Thread(() -> {
            try { while (System.in.read() >= 0) { } } catch (java.io.IOException gone) { }
            ending = true;
        });
        watching.setDaemon(true);
        watching.start();
    }

    static Properties properties(String file) throws Exception {
        Properties p = new Properties();
        try (var text = new FileReader(file)) { p.load(text); }
        p.put("reconnect.backoff.max.ms", "300"); p.put("request.timeout.ms", "8000");
        p.put("metadata.max.age.ms", "5000");
        return p;
    }

    static void connect(String file, String group) throws Exception {
        Properties p = properties(file);
        p.put("transactional.id", name); p.put("transaction.timeout.ms", "12000");
        p.put("delivery.timeout.ms", "10000"); p.put("linger.ms", "20"); p.put("batch.size", "65536");
        p.put("max.block.ms", "30000");
        producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
        p = properties(file);
        p.put("group.id", group); p.put("enable.auto.commit", "false"); p.put("auto.offset.reset", "earliest");
        p.put("isolation.level", "read_committed"); p.put("session.timeout.ms", "6000");
        p.put("heartbeat.interval.ms", "1000"); p.put("max.poll.interval.ms", "60000"); p.put("fetch.max.wait.ms", "100");
        p.put("max.poll.records", "" + RECORDS_MAX); p.put("default.api.timeout.ms", "30000");
        consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    // The same call again while its time is over before it is answered.
    static <T> T tried(Supplier<T> call) {
        while (true) {
            try { return call.get(); } catch (TimeoutException again) { System.err.println("again: " + again); }
        }
    }

    static long msSince(long began) { return (System.nanoTime() - began) / 1_000_000; }

    static void rewind() {
        var places = consumer.assignment();
        if (places.isEmpty()) return;
        tried(() -> consumer.committed(places)).forEach((place, at) -> consumer.seek(place, at == null ? 0 : at.offset()));
    }

    static List<ConsumerRecord<byte[], byte[]>> batch() {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long until = System.nanoTime() + WAIT_NS;
        while (found.size() < RECORDS_MAX && System.nanoTime() < until) {
            for (var record : consumer.poll(Duration.ofMillis(50))) found.add(record);
        }
        return found;
    }

    static void copy(List<ConsumerRecord<byte[], byte[]>> batch, Random random) {
        boolean meansToAbort = random.nextInt(1000) < aborted;
        String label = name + "." + life + "." + ++transactions;
        byte[] head = ((meansToAbort ? "a " : "c ") + batch.size() + " " + label + " ").getBytes();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        long began = System.nanoTime();
        try {
            producer.beginTransaction();
            for (var record : batch) {
                byte[] value = Arrays.copyOf(head, head.length + record.value().length);
                System.arraycopy(record.value(), 0, value, head.length, record.value().length);
                producer.send(new ProducerRecord<>(sink, record.partition(), null, value));
                ends.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            var metadata = consumer.groupMetadata();
            tried(() -> { producer.sendOffsetsToTransaction(ends, metadata); return null; });
            if (!meansToAbort) {
                tried(() -> { producer.commitTransaction(); return null; });
                System.out.println("committed " + batch.size() + " " + msSince(began));
                return;
            }
        } catch (KafkaException failed) {
            System.err.println(label + ": " + failed);
        }
        tried(() -> { producer.abortTransaction(); return null; });  // raises where the client cannot go on
        System.out.println("aborted " + batch.size() + " " + msSince(began));
        rewind();
    }

    public static void main(String[] a) throws Exception {
        source = a[1]; sink = a[2]; name = a[4]; life = a[5]; aborted = Integer.parseInt(a[6]);
        Random random = new Random((name + " " + life).hashCode());
        watch();
        connect(a[0], a[3]);
        try {
            tried(() -> { producer.initTransactions(); return null; });
            consumer.subscribe(List.of(source), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<TopicPartition> places) { hasRebalanced = true; }
                public void onPartitionsRevoked(Collection<TopicPartition> places) { hasRebalanced = true; }
            });
            while (!ending) {
                var batch = batch();
                if (hasRebalanced) {  // some of the batch may be of partitions that another member has by now
                    hasRebalanced = false;
                    rewind();
                } else if (!batch.isEmpty()) {
                    copy(batch, random);
                }
            }
            consumer.close();
            producer.close(Duration.ofSeconds(10));
        } catch (KafkaException failed) {
            System.err.println("cannot go on: " + failed);
            Runtime.getRuntime().halt(CANNOT_GO_ON);
        }
    }
}
