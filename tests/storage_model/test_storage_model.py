"""The storage model: seeds pass, failures are repeatable and shortened, mutations are caught."""

import pytest

from tests.seeded import run_mutated
from tests.storage_model.driver import Counts
from tests.storage_model.history import Broken
from tests.storage_model.mutations import MUTATIONS, Mutation
from tests.storage_model.operations import Operations
from tests.storage_model.traces import parse, run, shortened, trace_of

SEEDS = 300
"""`make test` runs more of them afterwards, for a minute."""
FORMER_FAILURES = {
    "empty log is offline after a clean stop, a power loss and a failed start": (
        "1 700 1000 1 -1 -1 2 1 3 0; restart 830 530"
    ),
    "log is offline after a power loss while a former replica is set aside": (
        "1 700 1000 3 300 1500 2 3 3 0; append 150 166; checkpoints 967 12; power 5 746; "
        "flush 888 510; append 825 488; power 2 115"
    ),
    "clean stop with a pending log start after ENOSPC loses records in a power loss": (
        "1 700 1000 3 900 -1 2 3 3 0; full 395 683; append 74 528; tick 295 636; append 363 765; "
        "delete 991 530; flush 82 446; relief 494 13; append 793 12; restart 267 266"
    ),
    "truncation on a full disk forgets producers of a dropped segment": (
        "0 250 1000 3 300 -1 512 1 1 1; append 803 967; append 966 697; full 84 516; "
        "append 850 82; commit 565 470; retention 759 198; truncate 925 843"
    ),
    "empty producer snapshot is lost in a power loss and stale sequences return": (
        "0 700 100000 1099511627776 -1 -1 2 1 1 0; replicate 435 555; append 812 952; "
        "delete 234 366; step 143 290; kill 5 438; checkpoints 129 620; kill 1 488; step 423 40; "
        "restart 832 101"
    ),
    "removal of a partition is not noticed while a former replica is set aside": (
        "0 250 100000 1 900 -1 2 3 1 1; fault 422 114; append 750 378; recreate 712 169; "
        "replicate 664 291; replace 78 799; recreate 516 15; restart 410 57"
    ),
    "second attempt of a log start on a full disk removes the file that has it": (
        "0 250 1000 3 300 -1 512 3 1 1; append 237 742; power 20 736; step 358 314; step 217 734; "
        "append 474 535; step 424 539; replicate 881 890; step 368 36; step 119 448; "
        "full 480 990; sync 901 275; commit 841 977; step 53 11; fault 99 792; delete 674 945; "
        "step 758 629; step 832 315; step 619 358; sync 445 396; step 55 910; step 113 635"
    ),
    "truncation keeps a snapshot of a failed job, and stale sequences return": (
        "1 700 1000 1099511627776 300 1500 2 3 1 0; replicate 620 829; append 272 64; "
        "append 441 95; append 99 787; kill 1 121; step 822 814; full 697 836; truncate 987 448; "
        "append 701 116; wait 639 115; append 519 800; truncate 368 227; kill 5 522; "
        "checkpoints 662 609; truncate 327 640"
    ),
    "truncation to a log start above lost records returns stale sequences": (
        "0 250 1000 1099511627776 900 -1 512 1 3 0; append 861 856; append 757 215; kill 13 46; "
        "restart 860 755; delete 39 125; truncate 547 92; power 3 260; append 16 284; "
        "fault 247 100; append 131 669; truncate 190 106"
    ),
    "crash before the first step of a truncation to the log start (model)": (
        "0 400 100000 1099511627776 300 -1 2 3 1 0; append 957 356; restart 439 428; "
        "delete 959 454; append 789 696; step 858 299; power 1 348; replace 557 180"
    ),
    "kill after a replica append with a gap (model)": (
        "1 400 1000 3 300 1500 2 3 8 1; append 841 752; commit 941 590; restart 791 350; "
        "delete 171 182; step 833 266; kill 3 842; replicate 824 743"
    ),
    "producers are exact after a truncation below the offset where they were adopted (model)": (
        "0 400 1000 3 900 1500 512 3 3 0; append 64 206; power 5 237; power 13 843; wait 147 961; "
        "wait 410 77; append 302 868; retention 79 68; append 630 950; power 20 567; power 13 19; "
        "replicate 847 765; relief 569 69; power 30 143; replicate 529 613; commit 509 924; "
        "replicate 385 419; flush 55 237; descriptors 346 708; fault 930 214; flush 876 196; "
        "replicate 148 118; wait 425 918; retention 101 805; truncate 285 168; append 901 205; "
        "full 18 189; append 411 294; replicate 158 187; append 791 543; truncate 184 49; "
        "power 5 399; replicate 982 609; replicate 252 782; flush 227 379; truncate 769 765"
    ),
    "batch beyond a hole of 2^31 offsets moves the start of an empty log (model)": (
        "2 400 1000 1099511627776 300 1500 512 3 8 0; append 56 84; retention 2 0; replicate 4 7"
    ),
}


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_log_keeps_its_promises_in_random_traces(first: int) -> None:
    failures = {seed: run(trace_of(seed)) for seed in range(first, first + 50)}
    assert not {seed: each.message for seed, each in failures.items() if each is not None}


@pytest.mark.parametrize("trace", FORMER_FAILURES.values(), ids=FORMER_FAILURES)
def test_trace_that_once_failed_passes(trace: str) -> None:
    failure = run(parse(trace))
    assert failure is None, failure.message


def test_random_traces_reach_every_fault() -> None:
    counts = Counts()
    for seed in range(60):
        run(trace_of(seed), counts)
    assert all(count >= 20 for count in vars(counts).values()), str(counts)


def test_printed_trace_is_the_same_trace() -> None:
    trace = trace_of(17)
    assert parse(str(trace)) == trace
    assert trace_of(17) == trace


def test_failing_trace_is_shortened_to_the_operations_that_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def do_epoch(self: Operations, _a: int, _b: int) -> None:
        self.history.leader_epoch += 1
        if self.history.leader_epoch == 2:
            raise Broken("test", "the second epoch")

    monkeypatch.setattr(Operations, "do_epoch", do_epoch)
    trace = next(each for each in map(trace_of, range(100)) if str(each).count("epoch") > 2)
    failure = run(trace)
    assert failure is not None
    assert failure.kind == "test"
    shorter, again = shortened(trace, failure)
    assert [op.name for op in shorter.ops] == ["epoch", "epoch"]
    assert again.message == failure.message


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_model_catches(mutation: Mutation) -> None:
    seeds = ["--first", str(mutation.first), "--seeds", str(mutation.seeds_max)]
    options = ["--failures=1", "--brief", "--jobs=1"]
    ended = run_mutated(["tests.storage_model", *seeds, *options], mutation.changes)
    assert ended.returncode == 1, f"{mutation.bug}, and all seeds passed:\n{ended.stdout}"
    assert "1 seeds failed" in ended.stdout, ended.stdout + ended.stderr
