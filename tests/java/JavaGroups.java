// Apache Kafka's own consumers in groups: each scenario is a sentence, and prints one line.
//
//   java -cp ... JavaGroups BOOTSTRAP

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaGroups {
    private static final long PATIENCE_MS = 30_000;
    private static final int PARTITIONS = 6;
    private static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";

    private final String bootstrap;
    private final Admin admin;

    private JavaGroups(String bootstrap) {
        this.bootstrap = bootstrap;
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        this.admin = Admin.create(config);
    }

    public static void main(String[] arguments) {
        JavaGroups groups = new JavaGroups(arguments[0]);
        int failures = Scenarios.run(groups.scenarios());
        groups.admin.close(Duration.ofSeconds(5));
        System.exit(failures == 0 ? 0 : 1);
    }

    private Map<String, Scenarios.Scenario> scenarios() {
        Map<String, Scenarios.Scenario> all = new LinkedHashMap<>();
        for (String name : List.of("Range", "RoundRobin", "Sticky", "CooperativeSticky")) {
            String assignor = ASSIGNORS + name + "Assignor";
            all.put("members share by " + name,
                () -> share(Map.of("partition.assignment.strategy", assignor)));
        }
        all.put("a commit is read by the next member", this::commits);
        all.put("a static member keeps its partitions over a restart", this::staticMember);
        all.put("a member that lost its partitions may not commit", this::lateCommit);
        all.put("the admin client sees and removes groups", this::administration);
        all.put("a static member is removed by an administrator", this::removal);
        all.put("members share by the newer protocol", this::shareByNewer);
        all.put("a commit is read by the next member of the newer protocol", this::commitsByNewer);
        all.put("a static member of the newer protocol keeps its place", this::staticByNewer);
        all.put("a late member of the newer protocol may not commit", this::lateCommitByNewer);
        all.put("the admin client sees groups of the newer protocol", this::administrationByNewer);
        all.put("an expression finds a topic that is made later", this::expression);
        all.put("a group passes to the newer protocol and back", this::migration);
        return all;
    }

    // Scenarios.

    private void share(Map<String, Object> settings) throws Exception {
        String topic = newTopic();
        String group = newGroup();
        List<Member> members = new ArrayList<>();
        try {
            for (int number = 0; number < 3; number++) {
                members.add(new Member(group, topic, settings));
            }
            until("three share", () -> areOwners(members, PARTITIONS / 3));
            members.remove(0).close();
            until("two share", () -> areOwners(members, PARTITIONS / 2));
        } finally {
            members.forEach(Member::close);
        }
    }

    private void shareByNewer() throws Exception {
        share(newer("group.remote.assignor", "uniform"));
        share(newer("group.remote.assignor", "range"));
    }

    private void commits() throws Exception {
        commits(Map.of());
    }

    private void commitsByNewer() throws Exception {
        commits(newer());
    }

    private void commits(Map<String, Object> settings) throws Exception {
        String topic = newTopic();
        String group = newGroup();
        TopicPartition place = new TopicPartition(topic, 2);
        send(topic, 2, 10);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group, settings)) {
            consumer.subscribe(List.of(topic));
            read(consumer, 10);
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(7, "seven")));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group, settings)) {
            OffsetAndMetadata found = consumer.committed(Set.of(place)).get(place);
            check(found.offset() == 7 && found.metadata().equals("seven"), found);
            consumer.subscribe(List.of(topic));
            check(read(consumer, 3) == 7, "it goes on elsewhere");
        }
    }

    private void staticMember() throws Exception {
        staticMember(Map.of("group.instance.id", "one"), Map.of("group.instance.id", "two"));
    }

    private void staticByNewer() throws Exception {
        staticMember(newer("group.instance.id", "one"), newer("group.instance.id", "two"));
    }

    private void staticMember(Map<String, Object> first, Map<String, Object> second)
            throws Exception {
        String topic = newTopic();
        String group = newGroup();
        Member one = new Member(group, topic, first);
        Member two = new Member(group, topic, second);
        List<Member> members = new ArrayList<>(List.of(one, two));
        try {
            until("two share", () -> areOwners(members, PARTITIONS / 2));
            Set<Integer> owned = two.owned;
            int rebalances = one.rebalances;
            two.close();
            Member again = new Member(group, topic, second);
            members.set(1, again);
            until("it is back", () -> again.owned.equals(owned));
            check(one.rebalances == rebalances, "the other one was disturbed");
        } finally {
            members.forEach(Member::close);
        }
    }

    private void lateCommit() throws Exception {
        lateCommit(Map.of("max.poll.interval.ms", 1000), Map.of());
    }

    private void lateCommitByNewer() throws Exception {
        lateCommit(newer("max.poll.interval.ms", 1000), newer());
    }

    private void lateCommit(Map<String, Object> settings, Map<String, Object> others)
            throws Exception {
        String topic = newTopic();
        String group = newGroup();
        try (KafkaConsumer<byte[], byte[]> slow = consumer(group, settings)) {
            slow.subscribe(List.of(topic));
            until("it has all", () -> {
                slow.poll(Duration.ofMillis(50));
                return slow.assignment().size() == PARTITIONS;
            });
            Member other = new Member(group, topic, others);
            try {
                until("the other has all", () -> other.owned.size() == PARTITIONS);
                slow.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)));
                check(false, "the commit was taken");
            } catch (CommitFailedException expected) {
                // What has to happen.
            } finally {
                other.close();
            }
        }
    }

    private void administration() throws Exception {
        administration(Map.of("client.id", "seen"), GroupType.CLASSIC);
    }

    private void administrationByNewer() throws Exception {
        administration(newer("client.id", "seen"), GroupType.CONSUMER);
    }

    private void administration(Map<String, Object> settings, GroupType type) throws Exception {
        String topic = newTopic();
        String group = newGroup();
        Member member = new Member(group, topic, settings);
        try {
            until("it has all", () -> member.owned.size() == PARTITIONS);
            ConsumerGroupDescription found = describe(group);
            check(found.groupState() == GroupState.STABLE && found.type() == type, found);
            check(found.members().size() == 1, found);
            var described = found.members().iterator().next();
            check(described.clientId().equals("seen"), found);
            check(described.assignment().topicPartitions().size() == PARTITIONS, found);
            ListGroupsOptions stable = new ListGroupsOptions()
                .inGroupStates(Set.of(GroupState.STABLE)).withTypes(Set.of(type));
            Set<String> names = admin.listGroups(stable).all().get().stream()
                .map(GroupListing::groupId).collect(Collectors.toSet());
            check(names.contains(group), names);
            refused(GroupNotEmptyException.class,
                () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        } finally {
            member.close();
        }
        TopicPartition place = new TopicPartition(topic, 0);
        admin.alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(5))).all().get();
        var offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        check(offsets.get(place).offset() == 5, offsets);
        admin.deleteConsumerGroupOffsets(group, Set.of(place)).all().get();
        check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().isEmpty(),
            "an offset is left");
        admin.deleteConsumerGroups(List.of(group)).all().get();
        refused(GroupIdNotFoundException.class, () -> describe(group));
    }

    private void expression() throws Exception {
        String prefix = "java-expression-" + UUID.randomUUID();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(newGroup(), newer())) {
            consumer.subscribe(new SubscriptionPattern(prefix + "-.*"));
            consumer.poll(Duration.ofMillis(200));
            NewTopic topic = new NewTopic(prefix + "-later", PARTITIONS, (short) 1);
            admin.createTopics(List.of(topic)).all().get();
            until("it is found", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == PARTITIONS;
            });
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(newGroup(), newer())) {
            consumer.subscribe(new SubscriptionPattern("["));
            until("it hears what is wrong", () -> {
                try {
                    consumer.poll(Duration.ofMillis(50));
                    return false;
                } catch (InvalidRegularExpression expected) {
                    return true;
                }
            });
        }
    }

    private void migration() throws Exception {
        String topic = newTopic();
        String group = newGroup();
        List<Member> members = new ArrayList<>();
        try {
            for (String name : List.of("CooperativeSticky", "Range")) {
                members.add(new Member(group, topic, Map.of("partition.assignment.strategy",
                    ASSIGNORS + name + "Assignor," + ASSIGNORS + "RoundRobinAssignor")));
            }
            until("two share", () -> areOwners(members, PARTITIONS / 2));
            Member newer = new Member(group, topic, newer());
            members.add(newer);
            until("three share", () -> areOwners(members, PARTITIONS / 3));
            check(describe(group).type() == GroupType.CONSUMER, "it is not a consumer group");
            members.remove(newer);
            newer.close();
            until("two share again", () -> areOwners(members, PARTITIONS / 2));
            check(describe(group).type() == GroupType.CLASSIC, "it is not a classic group");
        } finally {
            members.forEach(Member::close);
        }
    }

    private void removal() throws Exception {
        String topic = newTopic();
        String group = newGroup();
        Member member = new Member(group, topic, Map.of("group.instance.id", "one"));
        until("it has all", () -> member.owned.size() == PARTITIONS);
        member.close();
        check(describe(group).members().size() == 1, "an instance does not leave by itself");
        var options = new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")));
        admin.removeMembersFromConsumerGroup(group, options).all().get();
        until("it is empty", () -> {
            try {
                return describe(group).groupState() == GroupState.EMPTY;
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
    }

    // What they have in common.

    private final class Member {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final Thread thread;
        private volatile boolean isClosing;
        volatile Set<Integer> owned = Set.of();
        volatile int rebalances;

        Member(String group, String topic, Map<String, Object> settings) {
            consumer = consumer(group, settings);
            thread = new Thread(() -> {
                consumer.subscribe(List.of(topic));
                while (!isClosing) {
                    consumer.poll(Duration.ofMillis(50));
                    Set<Integer> now = consumer.assignment().stream()
                        .map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
                    if (!now.equals(owned)) {
                        rebalances++;
                        owned = now;
                    }
                }
                consumer.close();
            });
            thread.start();
        }

        void close() {
            isClosing = true;
            try {
                thread.join();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static boolean areOwners(List<Member> members, int each) {
        Set<Integer> all = new TreeSet<>();
        for (Member member : members) {
            if (member.owned.size() != each) {
                return false;
            }
            all.addAll(member.owned);
        }
        return all.size() == PARTITIONS;
    }

    /** Settings of a member of the newer protocol: names and values. */
    private static Map<String, Object> newer(Object... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("group.protocol", "consumer"));
        for (int at = 0; at < settings.length; at += 2) {
            all.put((String) settings[at], settings[at + 1]);
        }
        return all;
    }

    private ConsumerGroupDescription describe(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, Object> settings) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("group.protocol", "classic");
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("heartbeat.interval.ms", "200");
        config.putAll(settings);
        if (config.get("group.protocol").equals("consumer")) {
            config.remove("heartbeat.interval.ms");
        }
        return new KafkaConsumer<>(config);
    }

    /** Reads so many records, and returns the first one's offset. */
    private static long read(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<Long> offsets = new ArrayList<>();
        until("records come", () -> {
            consumer.poll(Duration.ofMillis(100)).forEach(record -> offsets.add(record.offset()));
            return offsets.size() >= count;
        });
        return offsets.get(0);
    }

    private void send(String topic, int partition, int count) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("key.serializer", ByteArraySerializer.class.getName());
        config.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            for (int number = 0; number < count; number++) {
                byte[] value = ("v" + number).getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(topic, partition, null, value)).get();
            }
        }
    }

    private String newTopic() throws Exception {
        String name = "java-groups-" + UUID.randomUUID();
        admin.createTopics(List.of(new NewTopic(name, PARTITIONS, (short) 1))).all().get();
        return name;
    }

    private static String newGroup() {
        return "java-group-" + UUID.randomUUID();
    }

    private static void until(String what, BooleanSupplier isSo) {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!isSo.getAsBoolean()) {
            check(System.currentTimeMillis() < end, "not in time: " + what);
            try {
                Thread.sleep(20);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static void refused(Class<?> kind, Scenarios.Scenario ask) throws Exception {
        try {
            ask.run();
        } catch (ExecutionException error) {
            check(kind.isInstance(error.getCause()), error);
            return;
        }
        check(false, "not refused with " + kind);
    }

    private static void check(boolean isSo, Object otherwise) {
        if (!isSo) {
            throw new AssertionError(otherwise);
        }
    }
}
