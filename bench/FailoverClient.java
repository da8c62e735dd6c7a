// The Java client of bench.failover. failover_client.py describes its output.
//
//     java -cp ... FailoverClient produce|consume BOOTSTRAP TOPIC
//
// The client runs until its standard input ends.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class FailoverClient {
    private static final int SEND_EVERY_MS = 5;
    private static final int POLL_MS = 300;

    public static void main(String[] arguments) {
        Thread work = new Thread(() -> {
            if (arguments[0].equals("produce")) {
                produce(arguments[1], arguments[2]);
            } else {
                consume(arguments[1], arguments[2]);
            }
        });
        work.setDaemon(true);
        work.start();
        try {
            while (System.in.read() >= 0) {
                // Wait for the end of the input.
            }
        } catch (java.io.IOException error) {
            System.err.println(error);
        }
        System.exit(0);
    }

    // System.nanoTime is CLOCK_MONOTONIC on Linux.
    private static synchronized void print(String event, long begun) {
        System.out.println(event + " " + begun + " " + System.nanoTime());
    }

    private static void produce(String bootstrap, String topic) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        while (true) {
            long sent = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, Long.toString(sent)), (record, error) -> {
                if (error == null) {
                    print("ack", sent);
                }
            });
            try {
                Thread.sleep(SEND_EVERY_MS);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private static void consume(String bootstrap, String topic) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", "failover-java");
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "latest");
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        while (true) {
            var records = consumer.poll(Duration.ofMillis(POLL_MS));
            if (records.isEmpty()) {
                continue;
            }
            long newest = 0;
            for (ConsumerRecord<String, String> record : records) {
                newest = Math.max(newest, Long.parseLong(record.value()));
            }
            print("poll", newest);
            long requested = System.nanoTime();
            try {
                consumer.commitSync();
            } catch (KafkaException error) {
                continue;
            }
            print("commit", requested);
        }
    }
}
