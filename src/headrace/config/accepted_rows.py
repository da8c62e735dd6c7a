"""Kafka's settings that have no effect here, so that a server.properties of Kafka is accepted.

One line each: name, type, default ("-" is none), limits ("*" is none, "low..high", or choices
between "|"), and marks. They are parsed when a name is not among the broker's own rows, or when all
settings are requested. The key of each section is the reason why they have no effect (features.py).
"""

from headrace.config.setting import ConfigType, Setting

_SECTIONS: dict[str, str] = {
    "internals": """
add.partitions.to.txn.retry.backoff.max.ms int 100 0..
add.partitions.to.txn.retry.backoff.ms int 20 1..
delete.records.purgatory.purge.interval.requests int 1 *
fetch.purgatory.purge.interval.requests int 1000 *
group.consumer.assignment.interval.ms int 1000 0.. dynamic
group.consumer.max.assignment.interval.ms int 15000 0..
group.consumer.min.assignment.interval.ms int 0 0..
group.coordinator.append.linger.ms int -1 -1..
group.coordinator.background.threads int 2 1..
group.coordinator.cached.buffer.max.bytes int 1048588 524288.. dynamic
group.coordinator.threads int 4 1..
log.cleaner.io.buffer.size int 524288 0.. dynamic
log.initial.task.delay.ms long 30000 0.. hidden
offsets.load.buffer.size int 5242880 1..
producer.purgatory.purge.interval.requests int 1000 *
transaction.state.log.load.buffer.size int 5242880 1..
transaction.two.phase.commit.enable boolean false *
unclean.leader.election.interval.ms long 300000 1.. hidden
""",
    "directories": """
cordoned.log.dirs list "" * dynamic per-broker
log.dir.failure.timeout.ms long 30000 1..
""",
    "share": """
group.share.assignment.interval.ms int 1000 0.. dynamic
group.share.assignors list simple *
group.share.delivery.count.limit int 5 2..10
group.share.heartbeat.interval.ms int 5000 1..
group.share.initialize.retry.interval.ms int 30000 1.. hidden
group.share.max.assignment.interval.ms int 15000 0..
group.share.max.delivery.count.limit int 10 5..25
group.share.max.heartbeat.interval.ms int 15000 1..
group.share.max.partition.max.record.locks int 4000 2000..10000
group.share.max.record.lock.duration.ms int 60000 30000..3600000
group.share.max.session.timeout.ms int 60000 1..
group.share.max.share.sessions int 2000 1..
group.share.max.size int 200 1..1000
group.share.min.assignment.interval.ms int 0 0..
group.share.min.delivery.count.limit int 2 2..5
group.share.min.heartbeat.interval.ms int 5000 1..
group.share.min.partition.max.record.locks int 100 100..2000
group.share.min.record.lock.duration.ms int 15000 1000..30000
group.share.min.session.timeout.ms int 45000 1..
group.share.partition.max.record.locks int 2000 100..10000
group.share.persister.class.name string - * hidden
group.share.record.lock.duration.ms int 30000 1000..3600000
group.share.session.timeout.ms int 45000 1..
share.coordinator.append.linger.ms int -1 -1..
share.coordinator.cached.buffer.max.bytes int 1048588 524288.. dynamic
share.coordinator.cold.partition.snapshot.interval.ms int 300000 1.. hidden
share.coordinator.load.buffer.size int 5242880 1..
share.coordinator.snapshot.update.records.per.snapshot int 500 0..500
share.coordinator.state.topic.compression.codec int 0 *
share.coordinator.state.topic.min.isr short 2 1..
share.coordinator.state.topic.num.partitions int 50 1..
share.coordinator.state.topic.prune.interval.ms int 300000 1.. hidden
share.coordinator.state.topic.replication.factor short 3 1..
share.coordinator.state.topic.segment.bytes int 104857600 1..
share.coordinator.threads int 1 1..
share.coordinator.write.timeout.ms int 5000 1..
share.fetch.purgatory.purge.interval.requests int 1000 *
""",
    "streams": """
group.streams.assignment.interval.ms int 1000 0.. dynamic
group.streams.heartbeat.interval.ms int 5000 1..
group.streams.initial.rebalance.delay.ms int 3000 0..
group.streams.max.assignment.interval.ms int 15000 0..
group.streams.max.heartbeat.interval.ms int 15000 1..
group.streams.max.session.timeout.ms int 60000 1..
group.streams.max.size int 2147483647 1..
group.streams.max.standby.replicas int 2 0..
group.streams.min.assignment.interval.ms int 0 0..
group.streams.min.heartbeat.interval.ms int 5000 1..
group.streams.min.session.timeout.ms int 45000 1..
group.streams.num.standby.replicas int 0 0..
group.streams.session.timeout.ms int 45000 1..
""",
    "links": """
controller.socket.timeout.ms int 30000 *
socket.connection.setup.timeout.max.ms long 30000 *
socket.connection.setup.timeout.ms long 10000 *
""",
    "kraft": """
broker.heartbeat.interval.ms int 2000 *
broker.session.timeout.ms int 9000 *
controller.listener.names list - *
controller.performance.always.log.threshold.ms long 2000 0.. hidden
controller.performance.sample.period.ms long 60000 100.. hidden
controller.quorum.append.linger.ms int 25 0..
controller.quorum.auto.join.enable boolean false *
controller.quorum.bootstrap.servers list "" *
controller.quorum.election.backoff.max.ms int 1000 0..
controller.quorum.election.timeout.ms int 1000 0..
controller.quorum.fetch.max.bytes int 1048576 1..
controller.quorum.fetch.snapshot.max.bytes int 1048576 1..
controller.quorum.fetch.timeout.ms int 2000 0..
controller.quorum.request.timeout.ms int 2000 0..
controller.quorum.retry.backoff.ms int 20 0..
controller.quorum.voters list "" *
early.start.listeners list - *
initial.broker.registration.timeout.ms int 60000 *
internal.metadata.delete.delay.millis long 60000 * hidden
internal.metadata.log.segment.bytes int - * hidden
internal.metadata.max.batch.size.in.bytes int 8388608 * hidden
metadata.log.dir string - *
metadata.log.max.record.bytes.between.snapshots long 20971520 1..
metadata.log.max.snapshot.interval.ms long 3600000 0..
metadata.log.segment.bytes int 1073741824 8388608..
metadata.log.segment.ms long 604800000 *
metadata.max.idle.interval.ms int 500 0..
metadata.max.retention.bytes long 104857600 *
metadata.max.retention.ms long 604800000 *
process.roles list - broker|controller
server.max.startup.time.ms long 9223372036854775807 0.. hidden
unstable.api.versions.enable boolean false * hidden
unstable.feature.versions.enable boolean false * hidden
""",
    "tiered": """
follower.fetch.last.tiered.offset.enable boolean false * dynamic
remote.fetch.max.wait.ms int 500 1.. dynamic
remote.list.offsets.request.timeout.ms long 30000 1.. dynamic
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. dynamic
remote.log.index.file.cache.ttl.ms long 900000 -1.. hidden
remote.log.manager.copier.thread.pool.size int 10 1.. dynamic
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1.. dynamic
remote.log.manager.expiration.thread.pool.size int 10 1.. dynamic
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1.. dynamic
remote.log.manager.follower.thread.pool.size int 2 1.. dynamic
remote.log.manager.task.interval.ms long 30000 1..
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. hidden
remote.log.manager.task.retry.backoff.ms long 500 1.. hidden
remote.log.manager.task.retry.jitter double 0.2 0..0.5 hidden
remote.log.manager.thread.pool.size int 2 1..
remote.log.metadata.custom.metadata.max.bytes int 128 0..
remote.log.metadata.manager.class.name string - *
remote.log.metadata.manager.class.path string - *
remote.log.metadata.manager.impl.prefix string rlmm.config. *
remote.log.metadata.manager.listener.name string - *
remote.log.reader.max.pending.tasks int 100 1..
remote.log.reader.threads int 10 1.. dynamic
remote.log.storage.manager.class.name string - *
remote.log.storage.manager.class.path string - *
remote.log.storage.manager.impl.prefix string rsm.config. *
remote.log.storage.system.enable boolean false *
""",
    "quotas": """
alter.log.dirs.replication.quota.window.num int 11 1..
alter.log.dirs.replication.quota.window.size.seconds int 1 1..
client.quota.callback.class class - *
quota.window.num int 11 1..
quota.window.size.seconds int 1 1..
remote.log.manager.copy.quota.window.num int 11 1..
remote.log.manager.copy.quota.window.size.seconds int 1 1..
remote.log.manager.fetch.quota.window.num int 11 1..
remote.log.manager.fetch.quota.window.size.seconds int 1 1..
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. dynamic
replication.quota.window.num int 11 1..
replication.quota.window.size.seconds int 1 1..
""",
    "limits": """
max.connection.creation.rate int 2147483647 0.. dynamic
max.connections.per.ip.overrides string "" * dynamic
""",
    "threads": """
background.threads int 10 1.. dynamic
log.cleaner.threads int 1 0.. dynamic
num.io.threads int 8 1.. dynamic
num.network.threads int 3 1.. dynamic
num.recovery.threads.per.data.dir int 2 1.. dynamic
num.replica.alter.log.dirs.threads int - *
queued.max.requests int 500 1..
""",
    "security": """
principal.builder.class class - * dynamic per-broker
sasl.client.callback.handler.class class - *
sasl.jaas.config password - * dynamic per-broker
sasl.kerberos.kinit.cmd string /usr/bin/kinit * dynamic per-broker
sasl.kerberos.min.time.before.relogin long 60000 * dynamic per-broker
sasl.kerberos.principal.to.local.rules list DEFAULT * dynamic per-broker
sasl.kerberos.service.name string - * dynamic per-broker
sasl.kerberos.ticket.renew.jitter double 0.05 * dynamic per-broker
sasl.kerberos.ticket.renew.window.factor double 0.8 * dynamic per-broker
sasl.login.callback.handler.class class - *
sasl.login.class class - *
sasl.login.connect.timeout.ms int - *
sasl.login.read.timeout.ms int - *
sasl.login.refresh.buffer.seconds short 300 * dynamic per-broker
sasl.login.refresh.min.period.seconds short 60 * dynamic per-broker
sasl.login.refresh.window.factor double 0.8 * dynamic per-broker
sasl.login.refresh.window.jitter double 0.05 * dynamic per-broker
sasl.login.retry.backoff.max.ms long 10000 *
sasl.login.retry.backoff.ms long 100 *
sasl.mechanism.controller.protocol string GSSAPI *
sasl.mechanism.inter.broker.protocol string GSSAPI * dynamic per-broker
sasl.oauthbearer.assertion.algorithm string RS256 *
sasl.oauthbearer.assertion.claim.aud string - *
sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
sasl.oauthbearer.assertion.claim.iss string - *
sasl.oauthbearer.assertion.claim.jti.include boolean false *
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
sasl.oauthbearer.assertion.claim.sub string - *
sasl.oauthbearer.assertion.file string - *
sasl.oauthbearer.assertion.private.key.file string - *
sasl.oauthbearer.assertion.private.key.passphrase password - *
sasl.oauthbearer.assertion.template.file string - *
sasl.oauthbearer.client.credentials.client.id string - *
sasl.oauthbearer.client.credentials.client.secret password - *
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 *
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 *
sasl.oauthbearer.jwt.retriever.class class - *
sasl.oauthbearer.jwt.validator.class class - *
sasl.oauthbearer.scope string - *
sasl.oauthbearer.scope.claim.name string scope *
sasl.oauthbearer.token.endpoint.url string - *
sasl.server.callback.handler.class class - *
security.providers string - *
ssl.engine.factory.class class - * dynamic per-broker
ssl.keymanager.algorithm string SunX509 * dynamic per-broker
ssl.protocol string TLSv1.3 * dynamic per-broker
ssl.provider string - * dynamic per-broker
ssl.secure.random.implementation string - * dynamic per-broker
ssl.trustmanager.algorithm string PKIX * dynamic per-broker
""",
    "jvm": """
alter.config.policy.class.name class - *
config.providers list "" * dynamic
create.topic.policy.class.name class - *
kafka.metrics.polling.interval.secs int 10 1..
kafka.metrics.reporters list "" *
metric.reporters list - * dynamic
metrics.num.samples int 2 1..
metrics.recording.level string INFO *
metrics.sample.window.ms long 30000 1..
telemetry.max.bytes int 1048576 1..
""",
    "legacy": """
advertised.host.name string - * hidden
advertised.port int - * hidden
auto.include.jmx.reporter boolean true * hidden
broker.id.generation.enable boolean true * hidden
control.plane.listener.name string - * hidden
controlled.shutdown.max.retries int 3 * hidden
controlled.shutdown.retry.backoff.ms long 5000 * hidden
eligible.leader.replicas.enable boolean false * hidden
group.coordinator.new.enable boolean true * hidden
group.share.enable boolean false * hidden
host.name string - * hidden
inter.broker.protocol.version string - * hidden
log.message.downconversion.enable boolean true * hidden
log.message.format.version string - * hidden
log.message.timestamp.difference.max.ms long - * hidden
password.encoder.cipher.algorithm string - * hidden
password.encoder.iterations int 4096 * hidden
password.encoder.key.length int 128 * hidden
password.encoder.keyfactory.algorithm string - * hidden
password.encoder.old.secret password - * hidden
password.encoder.secret password - * hidden
port int - * hidden
quota.consumer.default long - * hidden
reserved.broker.max.id int 1000 * hidden
zookeeper.clientCnxnSocket string - * hidden
zookeeper.max.in.flight.requests int 10 * hidden
zookeeper.metadata.migration.enable boolean false * hidden
zookeeper.ssl.cipher.suites list - * hidden
zookeeper.ssl.crl.enable boolean false * hidden
zookeeper.ssl.ocsp.enable boolean false * hidden
zookeeper.ssl.truststore.password password - * hidden
zookeeper.sync.time.ms int 2000 * hidden
""",
}


def accepted_rows() -> list[Setting]:
    """All lines as rows of the table."""
    return [
        _row(line.split(), feature)
        for feature, lines in _SECTIONS.items()
        for line in lines.strip().splitlines()
    ]


def _row(fields: list[str], feature: str) -> Setting:
    name, kind, default, limits, *marks = fields
    low, high, choices = _limits(limits)
    return Setting(
        name,
        ConfigType[kind.upper()],
        None if default == "-" else default.strip('"'),
        "",
        low=low,
        high=high,
        choices=choices,
        needs=feature,
        is_dynamic="dynamic" in marks,
        is_per_broker="per-broker" in marks,
        is_hidden="hidden" in marks,
    )


def _limits(text: str) -> tuple[float | None, float | None, tuple[str, ...]]:
    if text == "*":
        return None, None, ()
    low, dots, high = text.partition("..")
    if not dots:
        return None, None, tuple(text.split("|"))
    return _number(low), _number(high) if high else None, ()


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
