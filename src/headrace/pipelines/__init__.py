"""Pipelines as projects: Spark Declarative Pipelines over topics, run, watched and drawn.

A project is a directory with a `spark-pipeline.yml`; what runs leave behind is in `.headrace/`
beside it. Nothing here is imported before a command needs it: PySpark takes its time.
"""
