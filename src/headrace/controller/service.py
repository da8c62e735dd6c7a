"""Connects a broker to its cluster: the API of the packages `cluster` and `controller`.

Every broker has one `Controller` object, which creates and connects the parts of both packages. On
every broker, `Registration` registers the broker and keeps the image up to date. Only on the
elected broker, `Admin` writes topics and settings, `Failover` elects leaders, and `StateWriter`
writes partition states.

1. Every write is a `multi` that first checks the version of /controller_epoch (B8), and the version
   of each node that it changes.
2. The image changes after the store has accepted a write. Its listeners are called immediately, in
   the order of the changes.
3. After a broker has registered again, it leads only under new leader epochs (B7).
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from headrace.cluster import store_elections, store_reader
from headrace.cluster.changes import ImageChange
from headrace.cluster.controller_client import ControllerClient
from headrace.cluster.controller_role import ControllerRole
from headrace.cluster.failure_detection.detector import FailureDetector
from headrace.cluster.failure_detection.held_responses import HeldResponses
from headrace.cluster.failure_detection.liveness_machine import Liveness
from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.cluster.peers import CALL_TIMEOUT_S, Peers
from headrace.cluster.producer_ids import ProducerIds
from headrace.cluster.registration import Registration
from headrace.cluster.secret import ClusterSecret
from headrace.controller import topics_machine as machine
from headrace.controller.acl_admin import AclAdmin
from headrace.controller.admin import Admin, BrokerConfigCheck, ConfigEdit, TopicConfigCheck
from headrace.controller.broker_client import BrokerClient
from headrace.controller.broker_requests import BrokerRequests
from headrace.controller.failover import Failover, Rules, rules_of_settings
from headrace.controller.fenced_writer import FencedWriter
from headrace.controller.leader_balance import LeaderBalance
from headrace.controller.quota_writer import Edit as QuotaEdit
from headrace.controller.quota_writer import QuotaWriter
from headrace.controller.reassignment import Outcomes, Reassignments
from headrace.controller.state_writer import StateWriter
from headrace.controller.token_admin import TokenAdmin, TokenEdit
from headrace.coordination import layout
from headrace.coordination.port import Delete, Store, StoreError, StoreUnavailable
from headrace.coordination.retries import retry
from headrace.env.clock import Clock, SystemClock
from headrace.model.acls import Acl, AclFilter
from headrace.model.cluster import BrokerInfo, ClusterImage, Endpoint
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.ids import id_text
from headrace.model.quotas import Entity
from headrace.model.tokens import Token
from headrace.model.topics import TopicPartition, TopicState
from headrace.runtime.link import Network

_log = logging.getLogger(__name__)


_NO_PROOF = store_elections.DirectoryProof()


def _do_nothing(*_: object) -> None:
    pass


class _Writers(NamedTuple):
    """Write changes that clients request. `Admin` writes changes of topics and settings."""

    acls: AclAdmin
    quotas: QuotaWriter
    tokens: TokenAdmin


class Controller:
    def __init__(
        self,
        store: Store,
        node_id: int,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        internal_listener: str = "INTERNAL",
        limits: machine.TopicLimits | None = None,
        rules: Rules = rules_of_settings,
        check_topic_config: TopicConfigCheck = _do_nothing,
        check_broker_config: BrokerConfigCheck = _do_nothing,
        entropy: Callable[[int], bytes] = os.urandom,
        registration_wait_s: float = 20.0,
        silence_s: float = 6.0,
        request_timeout_s: float = 30.0,
        balance_interval_s: float | None = None,
        imbalance_max: float = 0.1,
        registered: Callable[[int], None] = _do_nothing,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """A single broker has no network.

        A broker that does not respond to the controller for `silence_s`, the session timeout, loses
        its partitions. Every `balance_interval_s`, the controller returns leadership to a broker if
        others lead more than the share `imbalance_max` of the partitions whose preferred replica it
        is. `registered` is called with each new epoch of this broker, before any other code uses
        it. `tls` returns the context for TLS with other brokers.
        """
        self.node_id = node_id
        self._store = store
        self._request_timeout_s = request_timeout_s
        clock = clock or SystemClock()
        self._live_image = LiveImage(store)
        self.image: ClusterImage = self._live_image.image
        locks = KeyedLocks()
        self._role = ControllerRole()
        self._writer = FencedWriter(store, self._role, self._live_image.versions)
        self._admin = Admin(
            store,
            self._live_image,
            self._writer,
            locks,
            limits or machine.TopicLimits(),
            check_topic_config,
            check_broker_config,
            entropy=entropy,
            avoided=self._brokers_to_avoid,
            wall_ms=clock.wall_ms,
        )
        self._writers = _Writers(
            AclAdmin(store, self._live_image, self._writer, locks),
            QuotaWriter(store, self._live_image, self._writer, locks),
            TokenAdmin(store, self._live_image, self._writer, locks, entropy),
        )
        self._states = self._make_states(rules, locks)
        self.secret = ClusterSecret(store, entropy, tls)
        self._peers = Peers(network, self.image, internal_listener, self.secret.log_in)
        self._controller_client = self._make_controller_client(clock)
        brokers = BrokerClient(node_id, self._peers)
        self._liveness = Liveness(node_id)
        if network is None:
            self._liveness.admit_all()
        self._failover = self._make_failover(rules, clock, brokers)
        self._reassignments = Reassignments(self.image, self._states, self._failover)
        self._leader_balance = LeaderBalance(
            self._reassignments, self._writer, balance_interval_s, imbalance_max
        )
        self._held = HeldResponses(self.image, clock, self._peers.is_ended)
        self._note_registered = registered
        self._registration_wait_s = registration_wait_s
        self._registration = self._make_registration(locks)
        self._failure_detector = self._make_failure_detector(silence_s, clock)
        self._requests = self._make_broker_requests(brokers)
        self._producer_ids = ProducerIds(self._controller_client.producer_id_block)

    def _make_failover(self, rules: Rules, clock: Clock, brokers: BrokerClient) -> Failover:
        return Failover(
            self._store,
            self._live_image,
            self._writer,
            self._states,
            clock,
            rules,
            self._liveness,
            brokers.request_log_ends,
        )

    def _make_states(self, rules: Rules, locks: KeyedLocks) -> StateWriter:
        return StateWriter(
            self._store,
            self._live_image,
            self._writer,
            locks,
            lambda settings: rules(settings).min_insync,
        )

    def _make_controller_client(self, clock: Clock) -> ControllerClient:
        return ControllerClient(
            self.node_id,
            self.image,
            self._role,
            self._peers,
            clock,
            lambda: self.broker_epoch,
            self.serve,
        )

    def _make_broker_requests(self, brokers: BrokerClient) -> BrokerRequests:
        return BrokerRequests(
            self._live_image,
            self._writer,
            self._states,
            self._failover,
            self._admin,
            brokers.is_responding,
            self._failure_detector.reaches_no_majority,
        )

    def _make_failure_detector(self, silence_s: float, clock: Clock) -> FailureDetector:
        return FailureDetector(
            node_id=self.node_id,
            image=self.image,
            role=self._role,
            peers=self._peers,
            clock=clock,
            liveness=self._liveness,
            elect=self._failover.run_soon,
            remove=self._failover.remove_dead,
            held=self._held,
            registration=self._registration,
            silence_s=silence_s,
        )

    def _make_registration(self, locks: KeyedLocks) -> Registration:
        return Registration(
            self._store,
            self.node_id,
            self._live_image,
            self._role,
            locks,
            self._registration_wait_s,
            self._peers.looks_dead,
            elected=self._elected,
            registered=self._registered,
            delete_controller_node=self._delete_controller_node,
        )

    def _elected(self, is_new: bool) -> None:
        self._failure_detector.elected(is_new)

    def _brokers_to_avoid(self) -> list[int]:
        """Brokers whose connection was just lost, or that are stopping: avoided as replicas."""
        live = self._liveness.live(self.image.brokers)
        return [
            node
            for node in self.image.brokers
            if node != self.node_id
            and (self._held.was_lost_lately(node) or (node in live and live[node].is_stopping))
        ]

    def _registered(self, epoch: int) -> None:
        self._note_registered(epoch)
        # A report is valid only for the broker epoch that it contains.
        self._controller_client.report_failed_logs()

    async def _delete_controller_node(self) -> None:
        await self._writer.commit([Delete(layout.CONTROLLER)])

    @property
    def is_controller(self) -> bool:
        return self._role.is_controller

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 while it is not registered."""
        return self._registration.broker_epoch

    @property
    def last_epoch(self) -> int:
        """The epoch of this broker's present or last registration.

        The marker of a clean stop contains it.
        """
        return self._registration.last_epoch

    @property
    def registered_ms(self) -> int:
        """The time of the registration by the store's clock.

        0 if the store uses the broker's clock.
        """
        return self._registration.registered_ms

    @property
    def controller_epoch(self) -> int:
        return self._registration.election.controller_epoch

    def on_change(self, listener: Callable[[ImageChange], None]) -> None:
        """Call a listener for each change of the image after `start`."""
        self._live_image.on_change(listener)

    async def start(
        self,
        endpoints: Iterable[Endpoint],
        *,
        rack: str | None = None,
        cluster_id: str = "",
        proof: store_elections.DirectoryProof = _NO_PROOF,
        needs_secret: bool = False,
    ) -> None:
        """Register, and read the image. If no controller exists, become it, and elect leaders.

        `cluster_id` is the id of a new cluster; the image always contains the id in the store.
        `proof` states which data this broker's directory still has. With `needs_secret`, the secret
        of the cluster is created if it does not exist. Raises StoreUnavailable or LayoutError, or
        ApiError if another process has registered this broker id.
        """
        new_id = cluster_id or id_text(self._admin.new_id())

        async def prepare() -> str:
            await store_elections.prepare(self._store, new_id)
            if needs_secret:
                await self.secret.create()
            return await store_reader.read_cluster_id(self._store)

        self.image.cluster_id = await retry(prepare, self._registration_wait_s)
        await self._registration.start(endpoints, rack, proof)
        await self._elect_first_leaders()
        self._live_image.start_notifying()
        self._live_image.on_change(self._changed)
        # The image can have changed before the listener was added.
        self._failover.run_soon()
        self._failure_detector.update()
        self._leader_balance.start()
        if self._peers.has_network:
            # Then new producers also get an id while the store is unreachable.
            self._producer_ids.renew()

    async def _elect_first_leaders(self) -> None:
        if self.is_controller:
            try:
                await self._failover.fit_to_live()
            except ApiError as error:
                _log.warning("elections postponed: error=%s", error)

    async def stop(self) -> None:
        """Complete the writes that have started, and deregister. The caller closes the store."""
        self._producer_ids.stop()
        await self._admin.stop()
        await self._failure_detector.stop()
        self._held.stop()
        await self._failover.stop()
        await self._registration.stop()
        await self._states.finish()
        self._controller_client.stop()
        self._leader_balance.stop()
        self._peers.close()
        try:
            if self.is_controller:
                await self._delete_controller_node()
            if self.broker_epoch != -1:
                await self._store.delete(layout.broker_path(self.node_id))
        except (ApiError, StoreError, StoreUnavailable) as error:
            # The end of the session deletes the same nodes later.
            _log.info("broker not deregistered: error=%s", error)
        self._role.drop()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = machine.DEFAULT,
        replication_factor: int = machine.DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        internal: bool = False,
        topic_id: UUID | None = None,
        leader_epochs: Sequence[int] = (),
    ) -> TopicState:
        """Create a topic.

        With `validate_only`, create nothing, and return the topic with a zero id. A topic for
        existing logs gets their `topic_id`, and `leader_epochs` above those in the logs.
        """
        new = machine.NewTopic(
            name, partitions, replication_factor, assignment, internal, topic_id, leader_epochs
        )
        admin = self._admin
        if self.is_controller or not self._peers.has_network or topic_id or validate_only:
            return await admin.run_to_end(
                admin.create_topic(new, dict(configs or {}), validate_only)
            )
        return await self._create_on_controller(new, configs or {})

    async def _create_on_controller(
        self, new: machine.NewTopic, configs: Mapping[str, str]
    ) -> TopicState:
        try:
            await self._controller_client.create_topic(
                new.name,
                new.partitions,
                new.replication_factor,
                configs,
                self._request_timeout_s,
            )
        except ApiError as error:
            if error.code is ErrorCode.NOT_CONTROLLER and self.is_controller:
                return await self._admin.run_to_end(self._admin.create_topic(new, configs, False))
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                await self._refresh_image()
            raise
        await self._refresh_image()
        return machine.existing(self.image, new.name)

    async def _refresh_image(self) -> None:
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self.refresh()
        except (TimeoutError, StoreError, StoreUnavailable):
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE) from None

    async def delete_topic(
        self, name: str, *, topic_id: UUID | None = None, internal: bool = False
    ) -> TopicState:
        """Delete a topic, and return its last state. Listeners of the image delete its logs."""
        return await self._admin.run_to_end(self._admin.delete_topic(name, topic_id, internal))

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicState:
        """Add partitions, up to `count`; `assignment` has the replicas of the added partitions."""
        admin = self._admin
        return await admin.run_to_end(
            admin.create_partitions(name, count, assignment, validate_only)
        )

    async def alter_topic_configs(
        self, name: str, edit: ConfigEdit, *, validate_only: bool = False
    ) -> TopicState:
        return await self._admin.run_to_end(
            self._admin.alter_topic_configs(name, edit, validate_only)
        )

    async def alter_broker_configs(
        self, node_id: int | None, edit: ConfigEdit, *, validate_only: bool = False
    ) -> Mapping[str, str]:
        """Change the dynamic settings of one broker; None: the settings of all brokers."""
        admin = self._admin
        return await admin.run_to_end(admin.alter_broker_configs(node_id, edit, validate_only))

    async def alter_group_configs(
        self, group: str, edit: ConfigEdit, *, validate_only: bool = False
    ) -> Mapping[str, str]:
        """Change the settings of one consumer group, which might not exist yet."""
        return await self._admin.run_to_end(
            self._admin.alter_group_configs(group, edit, validate_only)
        )

    async def alter_user(self, user: str, edit: ConfigEdit) -> Mapping[str, str]:
        """Change the stored settings of one user. A user without credentials is deleted."""
        return await self._admin.run_to_end(self._admin.alter_user(user, edit))

    async def create_acls(self, acls: Sequence[Acl]) -> None:
        """Add the ACLs that do not exist yet."""
        await self._admin.run_to_end(self._writers.acls.create(acls))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Delete the ACLs that match, and return those of each filter."""
        return await self._admin.run_to_end(self._writers.acls.delete(filters))

    async def create_token(self, make: Callable[[str], Token]) -> Token:
        """Create a delegation token; `make` gets its id."""
        return await self._admin.run_to_end(self._writers.tokens.create(make))

    async def alter_token(self, token_id: str, edit: TokenEdit) -> Token | None:
        """Change a delegation token, or delete it if `edit` returns None."""
        return await self._admin.run_to_end(self._writers.tokens.alter(token_id, edit))

    def remove_expired_tokens(self, now_ms: int) -> None:
        """Start to delete expired tokens, if this broker is the controller."""
        if self.is_controller:
            self._writers.tokens.remove_expired(now_ms)

    async def alter_quotas(
        self, entity: Entity, edit: QuotaEdit, *, validate_only: bool = False
    ) -> None:
        """Change the limits of one entity. An entity without limits is deleted."""
        await self._admin.run_to_end(self._writers.quotas.alter(entity, edit, validate_only))

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, is_unclean: bool = False
    ) -> Outcomes:
        """Elect the preferred replicas, or with `is_unclean` any replica if no leader exists.

        If `partitions` is None, of all partitions.
        """
        return await self._admin.run_to_end(
            self._reassignments.elect(partitions, is_unclean=is_unclean)
        )

    async def reassign_partitions(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        keeps_factor: bool = False,
    ) -> Outcomes:
        """Start to reassign each partition to its target replicas; a target of None cancels."""
        return await self._admin.run_to_end(
            self._reassignments.reassign(targets, keeps_factor=keeps_factor)
        )

    async def allocate_producer_ids(self, first_min: int = 0) -> tuple[int, int]:
        """A new block of producer ids: the first id, and the count."""
        return await self._admin.run_to_end(self._admin.allocate_producer_ids(first_min))

    async def next_producer_id(self) -> int:
        """One producer id from this broker's block."""
        return await self._producer_ids.next()

    async def confirm(self) -> None:
        """Raise NOT_CONTROLLER unless the store confirms that this broker is the controller."""
        await self._writer.confirm()

    async def refresh(self) -> None:
        """Wait until the image contains all changes that were written before this call."""
        await self._registration.refresh()

    async def to_controller(
        self,
        api_key: int,
        version: int,
        message: Mapping[str, Any],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a request to the controller, which can be this broker.

        The response can have an error. LinkBroken: no controller is known, or it is unknown whether
        it received the request.
        """
        return await self._controller_client.to_controller(api_key, version, message, timeout_s)

    async def controlled_shutdown(self, timeout_s: float = 10.0) -> bool:
        """Hand over all leaderships of this broker.

        Returns whether that succeeded within the timeout.
        """
        return await self._controller_client.controlled_shutdown(timeout_s)

    def report_failed_log(self, topic_id: UUID, index: int) -> None:
        """Report that this broker's log of a partition has failed, until this process ends."""
        self._registration.note_lost_data()
        self._controller_client.add_failed_log(topic_id, index)

    def wait_for_election(
        self, partitions: Iterable[TopicPartition], name_count: int
    ) -> Awaitable[None] | None:
        """An awaitable if the leader of a partition was just lost: see HeldResponses."""
        return self._held.wait_for_election(partitions, name_count)

    def was_lost_lately(self, node_id: int) -> bool:
        """Whether the connection to a broker was just lost: see HeldResponses.was_lost_lately."""
        return self._held.was_lost_lately(node_id)

    def brokers_to_list(
        self, client: str, leaders: Callable[[], set[int]]
    ) -> dict[int, BrokerInfo]:
        """The brokers that a Metadata response lists: see HeldResponses.brokers_to_list."""
        return self._held.brokers_to_list(client, leaders)

    async def serve(self, api_key: int, request: dict[str, Any]) -> dict[str, Any]:
        """Respond to another broker's request to the controller."""
        return await self._requests.serve(api_key, request)

    def _changed(self, change: ImageChange) -> None:
        if change.changed or change.deleted:
            self._held.wake()
        if change.brokers:
            self._peers.close_former_links()
            for before, after in change.brokers:
                if before is not None and after is None:
                    self._held.removed(before)
        if change.brokers or change.has_new_controller or change.is_lost:
            self._failure_detector.update()
        # One of a new topic's brokers can have failed since. New settings can allow an election.
        changed_topics = [
            after
            for before, after in change.changed
            if _has_new_configs_or_partitions(before, after)
        ]
        if change.brokers or change.broker_configs:
            self._failover.run_soon()
        elif change.created or changed_topics:
            self._failover.run_soon(topic.name for topic in (*change.created, *changed_topics))
        if change.has_new_controller:
            self._controller_client.report_failed_logs()


def _has_new_configs_or_partitions(before: TopicState, after: TopicState) -> bool:
    return before.configs != after.configs or len(before.partitions) != len(after.partitions)
