"""A follower whose history is not its leader's: epochs, truncation, fencing (B1, B2, B3)."""

import pytest

from headrace.replication.fetch_target import NEVER
from tests.storage.log_scenario import values
from tests.unit.replication.fetcher_scenario import Scene, answer, epochs_of
from tests.unit.replication.replica_scenario import Wire, elect, log_bytes, state


def test_response_from_before_a_new_epoch_is_ignored() -> None:
    scene = Scene(isr=(1,))
    scene.leader.append("old")
    scene.wire.ask()
    elect(scene.third, 2, scene.leader, scene.follower)
    scene.wire.machine.follow(scene.follower.partition())
    scene.wire.receive()
    assert scene.log.log_end_offset == 0
    assert scene.follower.partition().high_watermark == 0


def test_a_stale_leader_is_fenced_and_so_is_a_stale_follower() -> None:
    scene = Scene()
    scene.follower.partition().follow(state(scene.leader.node_id, 2))
    scene.wire.machine.follow(scene.follower.partition())
    scene.leader.append("a")
    scene.wire.run()
    assert scene.log.log_end_offset == 0
    elect(scene.leader, 3)
    scene.pass_ms(1000)
    scene.wire.run()
    assert scene.log.log_end_offset == 0
    elect(scene.leader, 4, scene.follower)
    scene.wire.machine.follow(scene.follower.partition())
    scene.wire.run()
    assert values(scene.log) == ["a"]


def test_a_follower_keeps_what_is_above_its_high_watermark_if_the_leader_has_it() -> None:
    """B1: cut to the high watermark it would lose a committed record when it leads next."""
    scene = Scene(isr=(1, 2))
    scene.leader.append("a")
    scene.wire.run()
    assert scene.leader.partition().high_watermark == 1
    assert scene.follower.partition().high_watermark == 0
    scene.follower.worker.work()
    elect(scene.leader, 2, scene.follower)
    scene.wire.machine.follow(scene.follower.partition())
    assert values(scene.log) == ["a"], "nobody has said that anything must go"
    scene.wire.catch_up()
    assert values(scene.log) == ["a"]
    assert scene.asked()[0][:3] == (2, 1, 1)


def test_unreplicated_records_of_a_former_leader_are_truncated() -> None:
    scene = Scene(isr=(1, 2))
    scene.leader.append("both")
    scene.wire.catch_up()
    scene.leader.append("alone")
    elect(scene.follower, 2, scene.leader)
    scene.follower.append("instead")
    back = Wire(scene.leader, scene.follower)
    back.machine.follow(scene.leader.partition())
    back.run()
    assert values(scene.leader.partition().log) == ["both", "instead"]
    assert log_bytes(scene.leader.partition().log) == log_bytes(scene.log)
    assert epochs_of(scene.leader) == epochs_of(scene.follower) == [(1, 0), (2, 1)]


def test_epoch_without_records_also_truncates() -> None:
    scene = Scene(isr=(1, 2))
    scene.leader.append("both")
    scene.wire.catch_up()
    scene.leader.append("alone")
    elect(scene.follower, 2, scene.leader)
    back = Wire(scene.leader, scene.follower)
    back.machine.follow(scene.leader.partition())
    back.run()
    assert values(scene.leader.partition().log) == ["both"]


def test_logs_that_diverge_in_several_epochs_are_truncated_step_by_step() -> None:
    """B2: after fast elections one look at the epochs is not enough."""
    scene = Scene(isr=(1, 2))
    one, two = scene.leader, scene.follower
    one.append("common")
    scene.wire.catch_up()
    # The two are leaders in turn, and the other replica does not fetch.
    for epoch in range(2, 8):
        leader = two if epoch % 2 == 0 else one
        other = one if leader is two else two
        elect(leader, epoch, other)
        for at in range(epoch % 3 + 1):
            leader.append(f"{epoch}-{at}")
    elect(two, 8, one)
    two.append("last")
    before = epochs_of(one)
    assert before[-1][0] == 7
    back = Wire(one, two)
    back.machine.follow(one.partition())
    rounds = back.run()
    assert rounds > 3
    assert log_bytes(one.partition().log) == log_bytes(two.partition().log)
    assert epochs_of(one) == epochs_of(two)
    assert values(one.partition().log)[0] == "common"


def test_an_empty_leader_empties_a_follower_that_has_more() -> None:
    scene = Scene()
    elect(scene.follower, 2, scene.leader, scene.third)
    scene.follower.append("nobody has this")
    elect(scene.leader, 3, scene.follower)
    scene.wire.machine.follow(scene.follower.partition())
    scene.wire.run()
    assert scene.log.log_end_offset == 0
    assert scene.asked()[0] == (3, 0, -1, 0)


def test_a_log_without_epochs_beyond_the_leaders_end_is_cut_to_what_is_committed() -> None:
    scene = Scene(isr=(1,))
    scene.leader.append("a", "b")
    assert scene.leader.partition().high_watermark == 2
    scene.log.truncate_fully_and_start_at(9, 0)
    scene.wire.catch_up()
    assert scene.log.log_end_offset == 2


def test_truncation_waits_for_the_running_job_of_the_log() -> None:
    scene = Scene(isr=(1, 2))
    scene.leader.append("both")
    scene.wire.catch_up()
    scene.leader.append("alone")
    elect(scene.follower, 2, scene.leader)
    scene.leader.is_busy = True
    old = scene.leader.partition()
    old.log.durable.request_checkpoint()
    old.log.durable.request_job()
    scene.leader.appends.start_job(old)
    back = Wire(scene.leader, scene.follower)
    back.machine.follow(old)
    back.run()
    assert old.log.log_end_offset == 2
    scene.leader.is_busy = False
    back.run()
    assert old.log.log_end_offset == 1


def test_truncation_below_the_high_watermark_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Only after an unclean election. The log must not report records that it lacks."""
    scene = Scene(isr=(1, 2))
    scene.leader.append("a", "b")
    scene.wire.catch_up()
    scene.wire.catch_up()
    assert scene.follower.partition().high_watermark == 2
    elect(scene.third, 2, scene.follower)
    wire = Wire(scene.follower, scene.third)
    wire.machine.follow(scene.follower.partition())
    wire.run()
    assert (scene.log.log_end_offset, scene.follower.partition().high_watermark) == (0, 0)
    assert "truncating committed records" in caplog.text


def test_invalid_epochs_of_a_leader_cause_no_endless_loop() -> None:
    scene = Scene()
    scene.wire.ask()
    diverging = {"epoch": 5, "end_offset": 50}
    scene.wire.machine.apply_response(answer(diverging_epoch=diverging), 0, scene.wire.now_ms())
    assert scene.wire.machine.next_request(1, scene.wire.now_ms()) is None
    assert scene.wire.machine.next_due_ms() == scene.wire.now_ms() + 20


def test_second_divergence_response_from_before_a_truncation_is_ignored() -> None:
    scene = Scene(partitions=2)
    machine = scene.wire.machine
    machine.unfollow(scene.follower.partition(1))
    scene.leader.append("a")
    scene.leader.append("b")
    scene.wire.catch_up()
    scene.wire.ask()
    machine.follow(scene.follower.partition(1))
    scene.wire.ask()
    for _ in range(2):
        machine.apply_response(answer(diverging_epoch={"epoch": 1, "end_offset": 1}), 0, 0)
    assert scene.log.log_end_offset == 1
    assert machine.next_due_ms() == NEVER
