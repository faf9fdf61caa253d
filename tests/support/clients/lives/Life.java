// A life of Apache Kafka's Java client (see __init__.py): java Life.java CLIENT.properties TOPIC COPY GROUP ID RECORDS
import java.io.FileReader;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Life {
    static String topic, copy, group;
    static int records, done;

    static synchronized void tell(String line) { System.out.println(line); System.out.flush(); }

    static Properties access(String file) throws Exception {
        Properties p = new Properties();
        try (var text = new FileReader(file)) { p.load(text); }
        return p;
    }

    static void write(Properties p) throws Exception {
        p.put("enable.idempotence", "true"); p.put("acks", "all"); p.put("delivery.timeout.ms", "120000");
        try (var producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < records; n++) {
                int number = n;
                producer.send(new ProducerRecord<>(topic, "" + n), (m, e) -> {
                    if (e != null) { e.printStackTrace(); Runtime.getRuntime().halt(1); }
                    tell("acked " + number);
                });
                Thread.sleep(10);
            }
        }
    }

    static void copy(KafkaProducer<String, String> producer, Properties p) throws Exception {
        p.put("group.id", group); p.put("auto.offset.reset", "earliest"); p.put("enable.auto.commit", "false");
        p.put("max.poll.records", "20");
        try (var consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (done < records) {
                var found = consumer.poll(Duration.ofSeconds(1));
                if (found.isEmpty()) continue;
                producer.beginTransaction();
                try {
                    Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                    for (var r : found) {
                        producer.send(new ProducerRecord<>(copy, r.value()));
                        ends.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
                    producer.commitTransaction();
                } catch (ProducerFencedException | InvalidProducerEpochException fatal) {
                    throw fatal;
                } catch (org.apache.kafka.common.KafkaException again) {
                    System.err.println("aborted for " + again);
                    producer.abortTransaction();
                    return;  // the next consumer goes on from what was committed
                }
                done += found.count();
                tell("copied " + done);
                Thread.sleep(50);
            }
        }
    }

    public static void main(String[] a) throws Exception {
        topic = a[1]; copy = a[2]; group = a[3]; records = Integer.parseInt(a[5]);
        write(access(a[0]));
        Properties p = access(a[0]);
        p.put("transactional.id", a[4]);
        try (var producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            while (done < records) copy(producer, access(a[0]));
        }
    }
}
