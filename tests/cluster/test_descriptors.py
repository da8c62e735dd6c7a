"""A leader without free file descriptors during its first ISR change."""

import resource
from pathlib import Path

from headrace.testing import RunningCluster
from tests.cluster.history import Load, Topic, wait_for

FEW = 3
"""Standard input, output and error: the broker can open nothing else."""


def test_leader_requests_isr_changes_after_descriptors_ran_out(tmp_path: Path) -> None:
    """The first request imports the schema of AlterPartition, which opens files (incident 29)."""
    settings = {"min.insync.replicas": "2"}
    with RunningCluster.start(tmp_path, settings=settings, links=True) as cluster:
        topic = Topic(cluster, "mill", partitions=3)
        topic.wait_until_in_sync()
        controller = topic.controller()
        index, state = next(
            (index, state)
            for index, state in topic.states().items()
            if state.leader not in (-1, controller)
        )
        leader = cluster.brokers[state.leader]
        follower = next(node for node in cluster.brokers if node not in (state.leader, controller))
        with Load(topic) as load:
            wait_for("acknowledgements", lambda: len(load.acked) > 30)
            limits = resource.prlimit(leader.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(leader.pid, resource.RLIMIT_NOFILE, (FEW, limits[1]))
            cluster.cut(state.leader, follower)
            try:
                # If the broker has changed an ISR before, the schema is loaded already.
                wait_for(
                    "an ISR change",
                    lambda: (
                        "Too many open files" in leader.log()
                        or follower not in topic.states()[index].isrs
                    ),
                )
                resource.prlimit(leader.pid, resource.RLIMIT_NOFILE, limits)
                wait_for(
                    "an ISR without the follower",
                    lambda: follower not in topic.states()[index].isrs,
                )
                count = len(load.acked)
                wait_for("more acknowledgements", lambda: len(load.acked) > count + 30)
            finally:
                cluster.heal()
