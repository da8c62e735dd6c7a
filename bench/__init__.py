"""The benchmark: Headrace beside Apache Kafka on one machine, in one run.

Read in this order: `frames` (the bytes that are sent), `load` (the generator), `workloads`
(what is measured), `brokers` (what is measured against), `table` (how it is shown), `__main__`.
"""
