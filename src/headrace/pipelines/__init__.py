"""Pipelines as projects: Spark Declarative Pipelines over topics, run, watched and drawn.

A project is a directory with a `spark-pipeline.yml`. The state that runs leave is in `.headrace/`
next to that file. Commands import these modules only on use, because PySpark loads slowly.
"""
