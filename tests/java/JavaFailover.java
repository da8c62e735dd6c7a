// Apache Kafka's own producer, and a group of each protocol, for as long as they are left alone.
//
//   java -cp ... JavaFailover BOOTSTRAP TOPIC    until its standard input ends
//
// Each line of its output says what a client was told: "ack partition offset value", "classic
// partition offset value" or "consumer partition offset value" for what a group's member has read,
// "failed why" for what it should not have been told.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class JavaFailover {
    private static volatile boolean isStopping = false;
    private static volatile boolean isAllSent = false;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        Thread producer = new Thread(() -> produce(bootstrap, topic));
        List<Thread> consumers = List.of(
            new Thread(() -> consume(bootstrap, topic, "classic")),
            new Thread(() -> consume(bootstrap, topic, "consumer")));
        producer.start();
        consumers.forEach(Thread::start);
        while (System.in.read() >= 0) {
            // Nothing is asked: only the end counts.
        }
        isStopping = true;
        producer.join();
        isAllSent = true;
        for (Thread consumer : consumers) {
            consumer.join();
        }
    }

    private static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(word);
        }
        System.out.println(line);
    }

    private static void produce(String bootstrap, String topic) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        config.put("enable.idempotence", "true");
        config.put("delivery.timeout.ms", "60000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; !isStopping; number++) {
                String value = Integer.toString(number);
                producer.send(new ProducerRecord<>(topic, value, value), (told, error) -> {
                    if (error == null) {
                        say("ack", told.partition(), told.offset(), value);
                    } else {
                        say("failed", error);
                    }
                });
                Thread.sleep(5);
            }
        } catch (Exception error) {
            say("failed", error);
        }
    }

    private static void consume(String bootstrap, String topic, String protocol) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", "java-" + protocol);
        config.put("group.protocol", protocol);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            int quiet = 0;
            while (quiet < 3) {
                var records = consumer.poll(Duration.ofMillis(300));
                quiet = records.isEmpty() && isAllSent ? quiet + 1 : 0;
                for (ConsumerRecord<String, String> record : records) {
                    say(protocol, record.partition(), record.offset(), record.value());
                }
                if (!records.isEmpty()) {
                    consumer.commitSync(Duration.ofSeconds(40));
                }
            }
        } catch (Exception error) {
            say("failed", protocol, error);
        }
    }
}
