"""Random traces from seeds, running them, and shortening one that fails."""

import gc
import random
import traceback
from typing import NamedTuple

from headrace.testing.disk import SimulatedCrash
from tests.storage_model.driver import Counts, Setup
from tests.storage_model.history import Broken
from tests.storage_model.operations import Operations

LENGTHS = (30, 80, 80, 200)
_WEIGHTS = {
    "append": 20,
    "step": 10,
    "flush": 6,
    "clean": 14,
    "replicate": 4,
    "delete": 4,
    "retention": 3,
    "truncate": 4,
    "replace": 1,
    "epoch": 3,
    "bump": 2,
    "retry": 2,
    "wrong": 2,
    "wait": 4,
    "commit": 2,
    "tick": 4,
    "sync": 3,
    "checkpoints": 1,
    "fault": 3,
    "full": 1,
    "descriptors": 1,
    "relief": 3,
    "kill": 3,
    "power": 3,
    "restart": 1,
    "recreate": 1,
}
_REMOVING = ("delete", "retention", "truncate", "replace", "recreate")


class Op(NamedTuple):
    name: str
    a: int
    b: int


class Trace(NamedTuple):
    setup: Setup
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        setup = " ".join(map(str, self.setup))
        return f"{setup}; " + "; ".join(f"{op.name} {op.a} {op.b}" for op in self.ops)


class Failure(NamedTuple):
    kind: str
    message: str
    details: str


def parse(text: str) -> Trace:
    head, *rest = text.split(";")
    ops = [each.split() for each in rest if each.strip()]
    return Trace(
        Setup(*map(int, head.split())), tuple(Op(name, int(a), int(b)) for name, a, b in ops)
    )


def trace_of(seed: int) -> Trace:
    """A run's settings and operations. Each run prefers some operations, and omits others."""
    generator = random.Random(seed)
    compacts = generator.choice((0, 0, 1, 1, 2))
    setup = Setup(
        compacts,
        generator.choice((250, 400, 700)),
        generator.choice((1000, 1000, 100_000)),
        generator.choice((1, 3, 1 << 40)),
        generator.choice((-1, 300, 900)),
        generator.choice((-1, 1500)),
        generator.choice((2, 512)),
        generator.choice((1, 3)),
        generator.choice((1, 3, 8)),
        generator.choice((0, 0, 1)),
    )
    weights = {
        name: weight * generator.choice((0, 0.3, 1, 1, 3)) for name, weight in _WEIGHTS.items()
    }
    weights["append"] = _WEIGHTS["append"]
    if not compacts:
        weights["clean"] = 0
    elif generator.random() < 0.3:
        # Jobs that fail while segments are replaced need many operations in the right order.
        weights |= dict.fromkeys(_REMOVING, 0)
        weights |= {name: 3 * _WEIGHTS[name] for name in ("clean", "sync", "fault", "flush")}
    names, chances = list(weights), list(weights.values())
    ops = []
    for name in generator.choices(names, chances, k=generator.choice(LENGTHS)):
        a, b = generator.randrange(1000), generator.randrange(1000)
        if name in ("kill", "power"):
            a = generator.choice((0, 1, 2, 3, 5, 8, 13, 20, 30))
        ops.append(Op(name, a, b))
    return Trace(setup, tuple(ops))


def run(trace: Trace, counts: Counts | None = None) -> Failure | None:
    """Run a trace; None if the log kept all of its promises."""
    # The last reference closes a file: the collector must not decide how many are open.
    gc.disable()
    try:
        driver = Operations(trace.setup)
        if counts is not None:
            driver.counts = counts
        for op in trace.ops:
            driver.run(*op)
        driver.finish(sum(op.a + op.b for op in trace.ops))
    except Broken as broken:
        return Failure(broken.kind, str(broken), _where(broken))
    except (Exception, SimulatedCrash) as error:  # noqa: BLE001 (any other error is a failure too)
        return Failure(type(error).__name__, repr(error), _where(error))
    finally:
        gc.enable()
    return None


def _where(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-6:])


def shortened(trace: Trace, failure: Failure, runs_max: int = 1500) -> tuple[Trace, Failure]:
    """A part of a trace that fails in the same way."""
    runs = 0
    size = max(len(trace.ops) // 2, 1)
    while True:
        at, is_shorter = 0, False
        while at < len(trace.ops) and runs < runs_max:
            candidate = trace._replace(ops=trace.ops[:at] + trace.ops[at + size :])
            found = run(candidate)
            runs += 1
            if found is not None and found.kind == failure.kind:
                trace, failure, is_shorter = candidate, found, True
            else:
                at += size
        if runs >= runs_max or (size == 1 and not is_shorter):
            return trace, failure
        size = max(size // 2, 1)
