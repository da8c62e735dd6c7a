"""Benchmarks: Headrace and Apache Kafka on the same machine.

`python -m bench` runs the comparison that docs/BENCHMARKS.md shows. Read its modules in this order:
`frames` (requests and expected responses), `load` (the load generator), `workloads`, `brokers` and
`clusters` (the processes), `schedule`, `groups`, `cluster` and `scale` (the parts of a run),
`table` (the report), `__main__` (the options).

Other modules with a `main` function measure one subject each: `python -m bench.NAME`.
"""
