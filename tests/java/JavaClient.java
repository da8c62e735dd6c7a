// Apache Kafka's own client against one broker: each scenario is a sentence, and prints one line.
//
//   java -cp ... JavaClient BOOTSTRAP
//
// Consumers use assign; groups are none of its business.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaClient {
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final long BASE_MS = System.currentTimeMillis() - 3_600_000;

    private final String bootstrap;
    private final Admin admin;

    private JavaClient(String bootstrap) {
        this.bootstrap = bootstrap;
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        this.admin = Admin.create(config);
    }

    public static void main(String[] arguments) {
        JavaClient client = new JavaClient(arguments[0]);
        int failures = Scenarios.run(client.scenarios());
        client.admin.close(Duration.ofSeconds(5));
        System.exit(failures == 0 ? 0 : 1);
    }

    private Map<String, Scenarios.Scenario> scenarios() {
        Map<String, Scenarios.Scenario> all = new LinkedHashMap<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            all.put("records come back as they were with " + codec, () -> roundTrip(codec));
            all.put("a record of a megabyte comes back with " + codec, () -> megabyte(codec));
        }
        all.put("a producer without idempotence may ask for any acks", this::acks);
        all.put("a record that is too large is refused", this::tooLarge);
        all.put("a consumer seeks inside batches and to both ends", this::seeks);
        all.put("timestamps find offsets", this::timestamps);
        all.put("an offset that is gone is out of range", this::outOfRange);
        all.put("one consumer reads many partitions in fetch sessions", this::manyPartitions);
        all.put("a waiting consumer is given what comes", this::longPoll);
        all.put("topics are created, described, listed and deleted", this::topics);
        all.put("partitions are added", this::partitions);
        all.put("configs are described with their sources and synonyms", this::configSources);
        all.put("configs are set, appended to, subtracted from and unset", this::configChanges);
        all.put("special timestamps are known to the admin client", this::listOffsets);
        all.put("the cluster is described", this::cluster);
        all.put("log directories are described", this::logDirectories);
        all.put("producers of a partition are described", this::producers);
        return all;
    }

    // Scenarios.

    private void roundTrip(String codec) throws Exception {
        String topic = newTopic(1, Map.of());
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        sent.add(record(topic, 0, "key", "value"));
        sent.add(record(topic, 1, "tombstone", null));
        sent.add(record(topic, 2, null, "no key"));
        sent.add(record(topic, 3, "", ""));
        sent.add(record(topic, 4, null, null));
        ProducerRecord<byte[], byte[]> headed = record(topic, 5, "k", "v");
        headed.headers().add("trace", bytes("1")).add("trace", bytes("2"));
        headed.headers().add("null", null).add("empty", new byte[0]);
        sent.add(headed);
        for (int number = 0; number < 200; number++) {
            sent.add(record(topic, 6 + number, "k" + number, "the same words ".repeat(20)));
        }
        List<RecordMetadata> told = send(sent, Map.of("compression.type", codec, "linger.ms", 20));
        List<ConsumerRecord<byte[], byte[]>> found = read(topic, 0, sent.size());
        for (int index = 0; index < sent.size(); index++) {
            ProducerRecord<byte[], byte[]> wrote = sent.get(index);
            ConsumerRecord<byte[], byte[]> came = found.get(index);
            same((long) index, told.get(index).offset());
            same((long) index, came.offset());
            same(wrote.timestamp(), came.timestamp());
            same(TimestampType.CREATE_TIME, came.timestampType());
            sameBytes(wrote.key(), came.key());
            sameBytes(wrote.value(), came.value());
            same(headers(wrote.headers()), headers(came.headers()));
        }
    }

    private void megabyte(String codec) throws Exception {
        String topic = newTopic(1, Map.of());
        byte[] value = new byte[1_000_000];
        byte[] noise = new byte[500_000];
        new Random(codec.hashCode()).nextBytes(noise);
        System.arraycopy(noise, 0, value, 0, noise.length);
        send(List.of(new ProducerRecord<>(topic, 0, BASE_MS, null, value)),
            Map.of("compression.type", codec));
        sameBytes(value, read(topic, 0, 1).get(0).value());
    }

    private void acks() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = newTopic(1, Map.of());
            send(List.of(record(topic, 0, "k", acks)),
                Map.of("acks", acks, "enable.idempotence", false));
            sameBytes(bytes(acks), read(topic, 0, 1).get(0).value());
        }
    }

    private void tooLarge() throws Exception {
        String topic = newTopic(1, Map.of("max.message.bytes", "1000"));
        refused(RecordTooLargeException.class,
            () -> send(List.of(record(topic, 0, null, "x".repeat(2000))), Map.of()));
        same(0L, send(List.of(record(topic, 0, null, "small")), Map.of()).get(0).offset());
    }

    private void seeks() throws Exception {
        String topic = filledTopic();
        TopicPartition where = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(where));
            for (long offset : new long[] {57, 0, 99, 33, 34, 9}) {
                consumer.seek(where, offset);
                same(offset, next(consumer, 1).get(0).offset());
            }
            consumer.seekToEnd(List.of(where));
            same(100L, consumer.position(where));
            consumer.seekToBeginning(List.of(where));
            same(0L, consumer.position(where));
            same(Map.of(where, 100L), consumer.endOffsets(List.of(where)));
            same(Map.of(where, 0L), consumer.beginningOffsets(List.of(where)));
        }
    }

    private void timestamps() throws Exception {
        TopicPartition where = new TopicPartition(filledTopic(), 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            for (int number : new int[] {0, 44, 99}) {
                long asked = BASE_MS + 10L * number;
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(where, asked)).get(where);
                same((long) number, found.offset());
                same(asked, found.timestamp());
                check(found.leaderEpoch().isPresent(), "a leader epoch");
            }
            same(null, consumer.offsetsForTimes(Map.of(where, BASE_MS + 991)).get(where));
        }
    }

    private void outOfRange() throws Exception {
        TopicPartition where = new TopicPartition(filledTopic(), 0);
        long low = admin.deleteRecords(Map.of(where, RecordsToDelete.beforeOffset(42)))
            .lowWatermarks().get(where).get(30, TimeUnit.SECONDS).lowWatermark();
        same(42L, low);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(where));
            consumer.seek(where, 41);
            refused(OffsetOutOfRangeException.class, () -> next(consumer, 1));
            consumer.seek(where, 42);
            same(42L, next(consumer, 1).get(0).offset());
        }
    }

    private void manyPartitions() throws Exception {
        int count = 30;
        String topic = newTopic(count, Map.of());
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < count; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            for (int round = 0; round < 5; round++) {
                List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
                for (int partition = round % 3; partition < count; partition += 3) {
                    sent.add(new ProducerRecord<>(topic, partition, BASE_MS, null, bytes("" + round)));
                }
                send(sent, Map.of());
                Set<Integer> from = next(consumer, sent.size()).stream()
                    .map(ConsumerRecord::partition).collect(Collectors.toCollection(TreeSet::new));
                same(sent.size(), from.size());
            }
        }
    }

    private void longPoll() throws Exception {
        String topic = newTopic(1, Map.of());
        TopicPartition where = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(where));
            consumer.seek(where, 0);
            same(0, consumer.poll(Duration.ofMillis(700)).count());
            send(List.of(record(topic, 0, "k", "late")), Map.of());
            sameBytes(bytes("late"), next(consumer, 1).get(0).value());
        }
    }

    private void topics() throws Exception {
        String topic = newTopic(3, Map.of("retention.ms", "3600000"));
        refused(TopicExistsException.class, () -> get(
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all()));
        TopicDescription described = describe(topic);
        same(3, described.partitions().size());
        described.partitions().forEach(partition -> {
            check(partition.leader() != null, "a leader");
            same(1, partition.replicas().size());
            same(1, partition.isr().size());
        });
        check(!described.topicId().toString().equals("AAAAAAAAAAAAAAAAAAAAAA"), "a topic id");
        check(get(admin.listTopics().names()).contains(topic), "the topic in the list");
        get(admin.deleteTopics(List.of(topic)).all());
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (get(admin.listTopics().names()).contains(topic)) {
            check(System.nanoTime() < deadline, "the topic to go");
        }
        refused(UnknownTopicOrPartitionException.class, () -> get(
            admin.deleteTopics(List.of(topic)).all()));
    }

    private void partitions() throws Exception {
        String topic = newTopic(1, Map.of());
        get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all());
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (describe(topic).partitions().size() != 4) {
            check(System.nanoTime() < deadline, "four partitions");
        }
        same(0L, send(List.of(new ProducerRecord<>(topic, 3, null, bytes("v"))), Map.of())
            .get(0).offset());
    }

    private void configSources() throws Exception {
        String topic = newTopic(1, Map.of("retention.ms", "3600000"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config config = get(admin.describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all())
            .get(resource);
        ConfigEntry own = config.get("retention.ms");
        same("3600000", own.value());
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, own.source());
        same(ConfigEntry.ConfigType.LONG, own.type());
        check(own.documentation() != null && !own.documentation().isEmpty(), "documentation");
        List<String> synonyms = own.synonyms().stream()
            .map(ConfigEntry.ConfigSynonym::name).collect(Collectors.toList());
        check(synonyms.contains("retention.ms"), "its own name among " + synonyms);
        ConfigEntry inherited = config.get("segment.bytes");
        same("1073741824", inherited.value());
        same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, inherited.source());
        check(config.entries().size() >= 20, "every config of a topic");

        Node node = get(admin.describeCluster().nodes()).iterator().next();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, node.idString());
        Config brokerConfig = get(admin.describeConfigs(List.of(broker)).all()).get(broker);
        same(node.idString(), brokerConfig.get("node.id").value());
        check(brokerConfig.get("node.id").isReadOnly(), "node.id to be read-only");
    }

    private void configChanges() throws Exception {
        String topic = newTopic(1, Map.of());
        alter(topic, "max.message.bytes", "5000", AlterConfigOp.OpType.SET);
        same("5000", topicConfig(topic, "max.message.bytes"));
        alter(topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        same(Set.of("delete", "compact"),
            Set.of(topicConfig(topic, "cleanup.policy").split(",")));
        alter(topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
        same("compact", topicConfig(topic, "cleanup.policy"));
        alter(topic, "max.message.bytes", "", AlterConfigOp.OpType.DELETE);
        same("1048588", topicConfig(topic, "max.message.bytes"));
    }

    private void listOffsets() throws Exception {
        TopicPartition where = new TopicPartition(filledTopic(), 0);
        same(0L, listOffset(where, OffsetSpec.earliest()).offset());
        same(100L, listOffset(where, OffsetSpec.latest()).offset());
        ListOffsetsResultInfo newest = listOffset(where, OffsetSpec.maxTimestamp());
        same(99L, newest.offset());
        same(BASE_MS + 990, newest.timestamp());
        same(44L, listOffset(where, OffsetSpec.forTimestamp(BASE_MS + 440)).offset());
        same(0L, listOffset(where, OffsetSpec.earliestLocal()).offset());
    }

    private void cluster() throws Exception {
        Collection<Node> nodes = get(admin.describeCluster().nodes());
        check(nodes.stream().anyMatch(node -> bootstrap.equals(node.host() + ":" + node.port())),
            bootstrap + " among " + nodes);
        check(get(admin.describeCluster().controller()) != null, "a controller");
        check(!get(admin.describeCluster().clusterId()).isEmpty(), "a cluster id");
    }

    private void logDirectories() throws Exception {
        TopicPartition where = new TopicPartition(filledTopic(), 0);
        int node = get(admin.describeCluster().nodes()).iterator().next().id();
        var directories = get(admin.describeLogDirs(List.of(node)).allDescriptions()).get(node);
        long size = directories.values().stream()
            .map(directory -> directory.replicaInfos().get(where)).filter(Objects::nonNull)
            .findFirst().orElseThrow().size();
        check(size > 1000, "a hundred records to have a size, not " + size);
    }

    private void producers() throws Exception {
        TopicPartition where = new TopicPartition(filledTopic(), 0);
        var states = get(admin.describeProducers(List.of(where)).partitionResult(where))
            .activeProducers();
        same(10, states.size());
        same(Set.of(9), states.stream().map(state -> state.lastSequence())
            .collect(Collectors.toSet()));
    }

    // What they are made of.

    /** A hundred records, ten milliseconds apart, by ten producers. */
    private String filledTopic() throws Exception {
        String topic = newTopic(1, Map.of());
        for (int start = 0; start < 100; start += 10) {
            List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
            for (int number = start; number < start + 10; number++) {
                records.add(record(topic, 10L * number, null, "" + number));
            }
            String codec = start % 20 == 0 ? "none" : "lz4";
            send(records, Map.of("linger.ms", 50, "compression.type", codec));
        }
        return topic;
    }

    private String newTopic(int partitions, Map<String, String> configs) throws Exception {
        String topic = "java-" + UUID.randomUUID();
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty());
        get(admin.createTopics(List.of(wanted.configs(configs))).all());
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (true) {
            try {
                describe(topic);
                return topic;
            } catch (UnknownTopicOrPartitionException notYet) {
                check(System.nanoTime() < deadline, "the topic to appear");
            }
        }
    }

    private TopicDescription describe(String topic) throws Exception {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
    }

    private ListOffsetsResultInfo listOffset(TopicPartition where, OffsetSpec spec)
            throws Exception {
        return get(admin.listOffsets(Map.of(where, spec)).partitionResult(where));
    }

    private void alter(String topic, String name, String value, AlterConfigOp.OpType how)
            throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), how);
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    private String topicConfig(String topic, String name) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return get(admin.describeConfigs(List.of(resource)).all()).get(resource).get(name).value();
    }

    private List<RecordMetadata> send(
            List<ProducerRecord<byte[], byte[]>> records, Map<String, Object> config)
            throws Exception {
        Map<String, Object> all = new HashMap<>(config);
        all.put("bootstrap.servers", bootstrap);
        List<RecordMetadata> told = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : records) {
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> one : sent) {
                told.add(get(one));
            }
        }
        return told;
    }

    private List<ConsumerRecord<byte[], byte[]>> read(String topic, long offset, int count) {
        TopicPartition where = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(where));
            consumer.seek(where, offset);
            return next(consumer, count);
        }
    }

    private static List<ConsumerRecord<byte[], byte[]>> next(
            KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (found.size() < count) {
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
            check(System.nanoTime() < deadline, count + " records, not " + found.size());
        }
        return found;
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("auto.offset.reset", "none");
        config.put("enable.auto.commit", false);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static ProducerRecord<byte[], byte[]> record(
            String topic, long afterMs, String key, String value) {
        return new ProducerRecord<>(topic, 0, BASE_MS + afterMs, bytes(key), bytes(value));
    }

    private static List<String> headers(Iterable<Header> headers) {
        List<String> shown = new ArrayList<>();
        for (Header header : headers) {
            shown.add(header.key() + "=" + Arrays.toString(header.value()));
        }
        return shown;
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static <T> T get(Future<T> future) throws Exception {
        try {
            return future.get(30, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return get((Future<T>) future.toCompletionStage().toCompletableFuture());
    }

    private static void refused(Class<? extends Exception> kind, Scenarios.Scenario work) {
        try {
            work.run();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return;
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError("expected " + kind.getSimpleName());
    }

    private static void same(Object expected, Object found) {
        check(Objects.equals(expected, found), expected + ", not " + found);
    }

    private static void sameBytes(byte[] expected, byte[] found) {
        check(Arrays.equals(expected, found), "the same bytes");
    }

    private static void check(boolean holds, String expected) {
        if (!holds) {
            throw new AssertionError("expected " + expected);
        }
    }
}
