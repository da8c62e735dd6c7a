"""Rules that prevent data loss, disabled one at a time: the tests must detect it.

A mutation replaces lines in a copy of the sources. A scripted schedule, which is a test, fails with
it. `python -m tests.simulation --mutations` prints the first random seed that fails.
"""

from typing import NamedTuple

from tests.seeded import Change


class Mutation(NamedTuple):
    name: str
    rule: str
    path: str
    changes: tuple[tuple[str, str], ...]
    schedule: str
    """A test that plays the schedule by hand."""

    def edits(self) -> list[Change]:
        return [Change(self.path, before, after) for before, after in self.changes]


_EPOCHS = "tests/unit/replication/test_fetcher_epochs.py"
_PARTITION = "tests/unit/replication/test_partition.py"
_ISR = "tests/unit/replication/test_isr_service.py"
_STRAYS = "tests/storage/test_strays.py"
_SCHEDULES = "tests/simulation/test_schedules.py"

MUTATIONS = (
    Mutation(
        "B1",
        "a follower cuts its log to its high watermark",
        "headrace/replication/fetcher_machine.py",
        (
            (
                "        target.leader_epoch = partition.leader_epoch\n"
                "        target.request_number = NEVER\n",
                "        target.leader_epoch = partition.leader_epoch\n"
                "        if partition.log.durable.job is None and not partition.log.has_staged:\n"
                "            partition.log.truncate_to(int(partition.high_watermark), 0)\n"
                "        target.request_number = NEVER\n",
            ),
        ),
        f"{_EPOCHS}::test_a_follower_keeps_what_is_above_its_high_watermark_if_the_leader_has_it",
    ),
    Mutation(
        "B2",
        "a leader responds for an epoch that it does not know",
        "headrace/replication/partition.py",
        (
            (
                "        return (latest if latest >= 0 else epoch), self.log.log_end_offset\n",
                "        return epoch, self.log.log_end_offset\n",
            ),
        ),
        f"{_PARTITION}::test_an_epoch_without_records_has_ended_where_the_log_ends",
    ),
    Mutation(
        "B3",
        "a leader responds to followers of any epoch",
        "headrace/replication/leader_sessions.py",
        (
            ("            or part.current_leader_epoch != partition.leader_epoch\n", ""),
            ("        if epoch != partition.leader_epoch:\n", "        if epoch == -2:\n"),
        ),
        f"{_EPOCHS}::test_a_stale_leader_is_fenced_and_so_is_a_stale_follower",
    ),
    Mutation(
        "B4",
        "a new leader adds followers to the ISR that lack records of its epoch's start",
        "headrace/replication/partition.py",
        (("            and follower.end_offset >= self.epoch_start_offset\n", ""),),
        f"{_PARTITION}::test_follower_is_admitted_only_with_all_records_of_earlier_epochs",
    ),
    Mutation(
        "B5",
        "a smaller ISR applies before the store has accepted it",
        "headrace/replication/partition_replicas.py",
        (
            (
                "        self.proposed = isr\n        self._update_membership()\n",
                "        self.proposed = self.isr = isr\n        self._update_membership()\n",
            ),
        ),
        f"{_PARTITION}::"
        "test_the_high_watermark_heeds_a_member_that_is_to_leave_until_the_store_has_agreed",
    ),
    Mutation(
        "B5-unknown",
        "a leader treats a missing response to an ISR change as a rejection",
        "headrace/replication/isr_service.py",
        (
            (
                "        if unknown:\n",
                "        for each in unknown:\n"
                "            each.partition.replicas.withdraw()\n"
                "        if unknown:\n",
            ),
        ),
        f"{_ISR}::test_request_without_a_response_is_repeated",
    ),
    Mutation(
        "B6",
        "another incarnation of a broker counts as the member of the ISR",
        "headrace/replication/replica_progress.py",
        (
            (
                "        if epoch != UNKNOWN and (epoch == self.committed_epoch"
                " or epoch == self.proposed_epoch):\n",
                "        if epoch != UNKNOWN:\n",
            ),
        ),
        f"{_PARTITION}::test_new_incarnation_of_a_member_is_ignored_until_it_is_admitted",
    ),
    Mutation(
        "B6-unclean",
        "a broker that restarted uncleanly stays in sync",
        "headrace/controller/failover_machine.py",
        (("        if broker.kept(epoch):\n", "        if True:\n"),),
        "tests/unit/controller/test_failover_machine.py"
        "::test_isr_member_is_valid_only_with_its_broker_epoch_b6",
    ),
    Mutation(
        "B6-last",
        "the controller does not wait for missing members of the ISR and the ELR",
        "headrace/controller/failover_machine.py",
        (
            (
                "    return [node for node in must_compare(state, live) if node not in found]\n",
                "    return [] if found else list(state.isr)\n",
            ),
        ),
        "tests/simulation/test_schedules.py"
        "::test_torn_write_of_the_last_in_sync_replica_loses_no_acknowledged_record",
    ),
    Mutation(
        "KIP-966",
        "a leader commits records below min.insync.replicas",
        "headrace/replication/partition.py",
        (
            (
                "        if not self.is_leader or self.replicas.has_elr"
                " or self.is_under_min_isr():\n",
                "        if not self.is_leader:\n",
            ),
        ),
        f"{_PARTITION}::test_the_high_watermark_stays_below_min_insync_replicas",
    ),
    Mutation(
        "B7",
        "a broker acts on a state that elected its former incarnation",
        "headrace/node/replicas.py",
        (
            (
                "        if state.leader == self._node_id and self._can_lead(partition, state):\n",
                "        if state.leader == self._node_id:\n",
            ),
        ),
        "tests/unit/node/test_replicas.py::test_leadership_of_a_former_incarnation_is_ignored",
    ),
    Mutation(
        "incident-2",
        "a compacted segment replaces one that was truncated since",
        "headrace/log/compaction/swap_in.py",
        ((" or log.truncation_count != self._truncation_count", ""),),
        "tests/storage/test_compaction_truncation.py"
        "::test_a_segment_that_was_truncated_and_refilled_is_not_replaced",
    ),
    Mutation(
        "incident-3",
        "after an outage any replica that is up becomes leader",
        "headrace/controller/failover_machine.py",
        (
            (
                "    return [node for node in must_compare(state, live) if node not in found]\n",
                "    return [] if found else list(state.isr)\n",
            ),
            (
                "    if any(node not in ends for node in must_compare(state, live)"
                " if node in members):\n        return None\n",
                "    if not ends:\n        return None\n",
            ),
        ),
        "tests/simulation/test_schedules.py"
        "::test_a_wiped_broker_that_restarts_first_waits_for_a_complete_one",
    ),
    Mutation(
        "incident-4",
        "DeleteRecords does not wait for followers",
        "headrace/handlers/delete_records.py",
        (
            (
                "int(partition.low_watermark(broker.image.brokers.__contains__))",
                "int(partition.log.log_start_offset)",
            ),
        ),
        "tests/unit/handlers/test_offsets.py"
        "::test_delete_records_times_out_while_a_live_replica_starts_earlier",
    ),
    Mutation(
        "incident-17",
        "a leader does not act on silent followers",
        "headrace/replication/silence_machine.py",
        (
            (
                "        silent = sum(node in self._silent for node in others)\n",
                "        silent = 0\n",
            ),
        ),
        "tests/unit/replication/test_silence_machine.py::test_leader_hands_over_when_all_followers_are_silent",
    ),
    Mutation(
        "incident-32",
        "a broker does not start if a file of a partition is unreadable",
        "headrace/log/directory/log_directory.py",
        (
            (
                "                if error.errno in _PROCESS_ERRORS:\n",
                "                if True:\n",
            ),
        ),
        f"{_SCHEDULES}::test_a_broker_with_an_unreadable_file_starts_and_serves_other_partitions",
    ),
    Mutation(
        "incident-33",
        "a leader treats the ELR as empty until its image has the ELR",
        "headrace/replication/partition.py",
        (("        replicas.has_elr = can_have_elr\n", ""),),
        f"{_ISR}::test_nothing_is_committed_between_the_response_and_the_image_that_has_the_elr",
    ),
    Mutation(
        "incident-34",
        "a worker treats a thread that could not be started as running",
        "headrace/runtime/worker.py",
        (
            (
                "            self._retry = self._loop.call_later(_RETRY_S, self._start)\n",
                "            self._started = True\n",
            ),
        ),
        "tests/unit/runtime/test_worker.py::test_jobs_run_once_a_thread_can_be_started",
    ),
    Mutation(
        "incident-35",
        "a stray replica without a checkpoint is kept",
        "headrace/node/strays.py",
        (("{name: self._logs.recorded_id(name) for", "{name: None for"),),
        f"{_STRAYS}::test_replica_that_was_killed_before_its_first_checkpoint_is_removed[wanted0]",
    ),
    Mutation(
        "incident-36",
        "a former controller decides by its outdated image",
        "headrace/requests/forwarding.py",
        (("    await broker.controller.confirm()\n", ""),),
        "tests/unit/controller/test_requests.py"
        "::test_former_controller_does_not_reject_requests_because_of_its_old_image",
    ),
    Mutation(
        "incident-37",
        "a reassignment removes an eligible leader replica while too few replicas are in sync",
        "headrace/controller/reassignment_machine.py",
        (
            (
                "all(node in replicas for node in complete_members(state))",
                "all(node in replicas for node in state.isr)",
            ),
        ),
        "tests/unit/controller/test_reassignment_machine.py"
        "::test_reassignment_keeps_eligible_replicas_until_the_isr_is_large_enough[True]",
    ),
    Mutation(
        "incident-38",
        "a stray replica is kept if its topic is created again after the start",
        "headrace/node/strays.py",
        (
            (
                "            return\n        self._add_renamed()\n        if not",
                "            return\n        if not",
            ),
        ),
        f"{_STRAYS}::test_replica_is_removed_if_its_topic_is_created_again_after_the_start[False-True]",
    ),
    Mutation(
        "incident-39",
        "a broker reports a failed log with its next periodic check",
        "headrace/node/broker.py",
        (("            self._replication.report_failed_disk(partition)\n", "            pass\n"),),
        f"{_SCHEDULES}::test_another_replica_becomes_leader_as_soon_as_a_disk_has_failed",
    ),
    Mutation(
        "incident-40",
        "the next producer id is only that of the store",
        "headrace/controller/admin.py",
        ((", first_min, self._wall_ms())", ", first_min)"),),
        "tests/unit/controller/test_service.py"
        "::test_no_producer_id_is_given_twice_if_the_store_is_an_older_copy",
    ),
    Mutation(
        "incident-41",
        "memory that runs out leaves a part of a batch",
        "headrace/log/log.py",
        (
            (
                "            raise self._drop_staged(end_offset) from None\n\n    def _stage(",
                "            raise\n\n    def _stage(",
            ),
        ),
        "tests/storage/test_log_memory.py"
        "::test_failed_allocation_leaves_no_part_of_a_batch[1-leader-one segment]",
    ),
    Mutation(
        "I29",
        "the deletion of an ACL succeeds before this broker knows of it",
        "headrace/requests/forwarding.py",
        (
            (
                "                is_applied = await _wait_for_image(broker, deadline)\n",
                "                is_applied = True\n",
            ),
        ),
        "tests/unit/handlers/test_authorization.py"
        "::test_forwarded_deletion_of_acls_succeeds_only_if_this_broker_applies_it",
    ),
    Mutation(
        "I29-cache",
        "a connection keeps its permissions when the ACLs change",
        "headrace/requests/topic_permissions.py",
        (
            (
                "        if peer.rights_version != version:\n",
                "        if peer.rights_version < 0:\n",
            ),
        ),
        "tests/unit/requests/test_topic_permissions.py::test_responses_are_cached_until_the_rules_change",
    ),
    Mutation(
        "B10",
        "a directory is served for another topic of the same name",
        "headrace/log/directory/partition_directories.py",
        (("    known = _topic_id_of(files, path)\n", "    known = topic_id\n"),),
        "tests/storage/test_log_directory.py::test_directory_of_a_former_topic_is_renamed[a-True]",
    ),
    Mutation(
        "I31",
        "retention trusts a wall clock that was stepped",
        "headrace/log/directory/log_directory.py",
        (
            (
                "self.clock.wall_ms(), self.wall_clock_check.is_trusted()",
                "self.clock.wall_ms(), True",
            ),
        ),
        "tests/storage/test_log_directory.py"
        "::test_deletion_by_age_pauses_while_the_wall_clock_is_off",
    ),
    Mutation(
        "compaction",
        "compaction removes the last value of a key",
        "headrace/log/compaction/rules.py",
        (
            (
                "record.key is None or record.offset < keys.get(record.key)",
                "record.key is None or record.offset <= keys.get(record.key)",
            ),
        ),
        "tests/unit/log/test_cleaner.py::test_random_writes_and_compactions_keep_the_last_values",
    ),
    Mutation(
        "retention",
        "retention removes records above the high watermark",
        "headrace/log/upkeep/retention.py",
        ((" or end > high_watermark or not is_due", " or not is_due"),),
        "tests/storage/test_log_upkeep.py::test_nothing_beyond_the_high_watermark_is_dropped",
    ),
)
