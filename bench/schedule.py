"""Runs the measurements on single brokers: starts, warm-up, rounds, interference, memory.

Owns the running brokers and the samples. Other modules measure the samples and format them.

1. Complete rounds warm up each broker before the first measured round.
2. Brokers alternate with each workload. The first broker alternates with each round.
3. At the end of a run, also after an error, all brokers are stopped and their data is deleted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench import brokers, interference, profile, table
from bench.brokers import HEADRACE, KAFKA, Broker, HeadraceCommand
from bench.kafka import say
from bench.workloads import SLOW_FETCHES, WORKLOADS, Round, Sample

Samples = defaultdict[str, dict[str, list[Sample]]]
DROP = "bulk-drop"


@dataclass(slots=True)
class Plan:
    """The parts of a run, the number of rounds, and the brokers."""

    names: tuple[str, ...]
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    flush: bool = True
    start: bool = True
    beside: bool = True
    groups: bool = True
    cluster: bool = True
    partitions: int = 2000
    """Partitions in the part scale; 0 omits the part."""
    warm_rounds: int = 2
    rounds: int = 3
    scale: float = 1.0
    minutes_max: float = 20.0
    headrace: HeadraceCommand = field(default_factory=HeadraceCommand)
    # Settings of an additional Headrace, which runs bulk once more per round.
    drop_settings: dict[str, str] = field(default_factory=dict)
    profile: str | None = None


@dataclass(slots=True)
class Measured:
    """All samples: with the page cache, and with flush.messages=1."""

    cached: Samples = field(default_factory=lambda: defaultdict(dict))
    flushed: Samples = field(default_factory=lambda: defaultdict(dict))

    def add(self, name: str, broker: Broker, sample: Sample, *, flush: bool = False) -> None:
        samples = self.flushed if flush else self.cached
        samples[name].setdefault(broker.name, []).append(sample)


class Run:
    """One run of the benchmark."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.measured = Measured()
        self.running: list[Broker] = []
        self.began = time.monotonic()
        self.taken = 0

    def run(self) -> Measured:
        plan = self.plan
        try:
            self._start_all()
            for number in range(-plan.warm_rounds, plan.rounds):
                began = time.monotonic()
                self._round(number)
                if number == -plan.warm_rounds:
                    self._fit(time.monotonic() - began)
            if plan.beside:
                self._beside()
            self._memory()
        finally:
            for broker in self.running:
                broker.stop()
        return self.measured

    def _fit(self, round_s: float) -> None:
        """Reduce the work of later rounds if they would exceed the time limit."""
        plan = self.plan
        needed_s = round_s * (plan.warm_rounds + plan.rounds - 1 + (1 if plan.beside else 0))
        left_s = plan.minutes_max * 60 - (time.monotonic() - self.began)
        if needed_s > left_s:
            plan.scale *= max(0.1, left_s / needed_s)
            say(
                f"later rounds do {plan.scale:.2g} of the full work, "
                f"because of the limit of {plan.minutes_max:g} minutes"
            )

    def _samples_planned(self) -> int:
        plan = self.plan
        names = [*plan.workloads]
        if plan.flush:
            names += [name for name in names if name not in SLOW_FETCHES]
        per_round = len(names) * len(self.running)
        count = per_round * (plan.warm_rounds + plan.rounds)
        if HEADRACE in plan.names and "bulk" in plan.workloads:
            count += plan.rounds
        if plan.beside:
            count += plan.rounds * len(interference.KINDS) * len(self.running)
        return count

    def _show(self, label: str, broker: Broker, sample: Sample) -> None:
        self.taken += 1
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        progress = f"{self.taken:>3}/{self._samples_planned()} {minutes:>2}:{seconds:02}"
        say(f"{progress} {label:>14}  {broker.name:<9} {table.summary(sample)}")

    def _launch(self, name: str) -> Broker:
        if name == KAFKA:
            return brokers.start_kafka()
        return brokers.start_headrace(self.plan.headrace)

    def _start_all(self) -> None:
        for _ in range(self.plan.rounds - 1 if self.plan.start else 0):
            for name in self.plan.names:
                broker = self._launch(name)
                broker.stop()
                self._note_start(broker)
        for name in self.plan.names:
            broker = self._launch(name)
            self.running.append(broker)
            if self.plan.start:
                self._note_start(broker)
        # A broker is idle when the work after its first response has ended, too.
        time.sleep(3.0)
        for broker in self.running:
            broker.rss_idle_mb = broker.memory_mb()[0]

    def _note_start(self, broker: Broker) -> None:
        self.measured.add("start", broker, {"start_s": broker.start_s})
        say(f"{'start':>12}  {broker.name:<9} {broker.start_s:.3f} s")

    def _round(self, number: int) -> None:
        counts = number >= 0
        say(f"round {number + 1} of {self.plan.rounds}" if counts else "warm-up")
        order = self.running if number % 2 == 0 else self.running[::-1]
        for flush in (False, True) if self.plan.flush else (False,):
            turns = [(each, Round(each, number, flush, self.plan.scale)) for each in order]
            for name in self.plan.workloads:
                if flush and name in SLOW_FETCHES:
                    continue
                for broker, turn in turns:
                    label = f"{name}+flush" if flush else name
                    kind = self.plan.profile if counts else None
                    with profile.attached(kind, broker, label):
                        sample = self._sample(label, broker, WORKLOADS[name], turn)
                    if counts:
                        self.measured.add(name, broker, sample, flush=flush)
            for _, turn in turns:
                turn.close()
        if counts and HEADRACE in self.plan.names and "bulk" in self.plan.workloads:
            self._bulk_with_drop_behind(number)

    def _sample(
        self, label: str, broker: Broker, take: Callable[[Round], Sample], turn: Round
    ) -> Sample:
        sample = take(turn)
        self._show(label, broker, sample)
        return sample

    def _bulk_with_drop_behind(self, number: int) -> None:
        """Run bulk on an additional Headrace: the window is a setting of the broker."""
        ours = self.plan.headrace
        command = HeadraceCommand(
            ours.python,
            ours.path,
            ours.settings | self.plan.drop_settings,
            ours.interpreter_options,
        )
        with self._extra(command) as broker:
            turn = Round(broker, number, flush=False, scale=self.plan.scale)
            sample = self._sample(DROP, broker, WORKLOADS["bulk"], turn)
            self.measured.add(DROP, broker, sample)
        for of_kafka in self.measured.cached["bulk"].get(KAFKA, [])[-1:]:
            self.measured.cached[DROP].setdefault(KAFKA, []).append(of_kafka)

    @contextmanager
    def _extra(self, command: HeadraceCommand) -> Iterator[Broker]:
        broker = brokers.start_headrace(command)
        try:
            yield broker
        finally:
            broker.stop()

    def _beside(self) -> None:
        say("latency of one consumer while other clients load the broker")
        for broker in self.running:
            interference.prepare(broker, self.plan.scale)
        for _ in range(self.plan.rounds):
            for kind in interference.KINDS:
                for broker in self.running:
                    sample = interference.measure(broker, kind, self.plan.scale)
                    self._show(kind, broker, sample)
                    self.measured.add(f"beside-{kind}", broker, sample)
        for broker in self.running:
            interference.clean(broker)

    def _memory(self) -> None:
        for broker in self.running:
            resident, peak = broker.memory_mb()
            sample = {
                "rss_idle_mb": broker.rss_idle_mb,
                "rss_loaded_mb": resident,
                "rss_peak_mb": peak,
            }
            say(f"{'memory':>14}  {broker.name:<9} {table.summary(sample)}")
            self.measured.add("memory", broker, sample)


def names_of(headrace: bool, kafka: bool) -> tuple[str, ...]:
    return tuple(name for name, wanted in ((HEADRACE, headrace), (KAFKA, kafka)) if wanted)
