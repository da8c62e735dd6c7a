# make help lists the commands. Most commands create .venv if needed, and use its Python.

PYTHON ?= python3
PYTEST_ARGS ?=
# The number of parallel tests; 0 runs them sequentially, in one process.
WORKERS ?= auto

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/.tools
# .ci/run sets .ci/pytest, which runs failed tests once more.
PYTEST ?= $(BIN)/pytest
PACKAGE := $(VENV)/.package
# Directories are listed too, so that a deleted file counts as a change.
SOURCES := $(shell find src -name __pycache__ -prune -o \( -name '*.py' -o -name py.typed \
	-o -path '*/pipelines/shop/*' -o -type d \) -print)
NEEDS := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print( \
	*p["build-system"]["requires"], *p["project"]["dependencies"], \
	*(need for extra in ("avro", "cluster", "spark", "pipelines", "dev") \
	for need in p["project"]["optional-dependencies"][extra] if not need.startswith("headrace")), \
	sep="\n")

.PHONY: help demo test test-java test-interop-secure test-spark test-spark-cluster \
	test-spark-cluster-short test-spark-long test-spark-versions test-spark-oldest test-formats \
	test-ecosystem churn bench bench-spark lint format sim fuzz-log torture docs dist wheels clean
.DELETE_ON_ERROR:

help:
	@echo "make demo                run the demo: shop events, a pipeline on Spark, kill -9; BROKERS=3 for a cluster"
	@echo "make test                run all tests except those with Kafka's Java clients and tools"
	@echo "make test-java           run the tests with kcat, Kafka's Java client and its tools"
	@echo "make test-interop-secure run the tests with other clients over SASL_SSL with ACLs"
	@echo "make test-spark          run the part of make test that needs Spark"
	@echo "make test-spark-cluster  run all tests on a Spark cluster whose workers lack Headrace"
	@echo "make test-spark-cluster-short  run its short part, as CI does"
	@echo "make test-spark-long     run the long tests of Spark programs that are killed repeatedly"
	@echo "make test-spark-versions run the Spark tests on PySpark 4.0 to 4.3; takes an hour"
	@echo "make test-spark-oldest   run the short tests of the data source on the oldest PySpark"
	@echo "make test-formats        run pipelines with Iceberg and Delta tables"
	@echo "make test-ecosystem      run the examples for Faust, Quix Streams and FastStream"
	@echo "make sim                 simulate SEEDS=1000 fault schedules of a cluster; count detected mutations"
	@echo "make fuzz-log            apply random operations and faults to a log for SECONDS=600, from SEED=(time)"
	@echo "make torture             inject faults into a live cluster for HOURS=1; update docs/RELIABILITY.md"
	@echo "make churn               make group members join, leave, pause and exit at random; SECONDS=60 SEED=1"
	@echo "make bench               compare Headrace with Apache Kafka; update docs/BENCHMARKS.md; BENCH_ARGS=(options)"
	@echo "make bench-spark         compare the data source with Spark's Kafka connector; BENCH_ARGS=(options)"
	@echo "make lint                check format, rules, types, imports and generated pages"
	@echo "make format              format the code with ruff, and apply its automatic fixes"
	@echo "make docs                generate docs/CLI.md and parts of other pages"
	@echo "make dist                build an sdist and wheels into dist/, check and try them; URL=(repository)"
	@echo "make wheels              build wheels for all Pythons and ARCHS=x86_64,aarch64 into dist/; needs Docker"
	@echo "make clean               delete environments, builds and caches, but not the downloads in .cache"

demo: $(PACKAGE)
	@BROKERS=$(BROKERS) $(BIN)/python -m demo

test: $(PACKAGE)
	$(PYTEST) --numprocesses=$(WORKERS) --dist=worksteal --ignore=tests/java \
		--ignore=tests/spark --ignore=tests/spark_long --ignore=tests/pipelines \
		--ignore=tests/spark_cluster --ignore=tests/ecosystem --ignore=tests/formats $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(BIN)/python -m tests.simulation --seeds 120)
	$(if $(PYTEST_ARGS),,$(BIN)/python -m tests.storage_model --seeds 3000 --first 1000)
# Sequential, because they share a Spark session or server.
	$(if $(PYTEST_ARGS),,$(PYTEST) tests/spark)
	$(if $(PYTEST_ARGS),,$(PYTEST) tests/pipelines)

test-interop-secure: $(PACKAGE)
	HEADRACE_TEST_SECURE=1 $(PYTEST) --numprocesses=$(WORKERS) --dist=worksteal tests/interop $(PYTEST_ARGS)

test-spark: $(PACKAGE)
	$(BIN)/pytest tests/spark $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(PYTEST) tests/pipelines)

test-spark-versions: $(PACKAGE)
	$(BIN)/python -m tests.spark_versions $(VERSIONS)

test-spark-oldest: $(PACKAGE)
	$(BIN)/python -m tests.spark_versions --short 4.0

test-formats: $(PACKAGE)
	$(BIN)/python -m tests.spark_versions --formats $(VERSIONS)

sim: $(PACKAGE)
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) $(SIM_ARGS)
	$(if $(SIM_ARGS),,$(BIN)/python -m tests.simulation --seeds 300 --mutations)

fuzz-log: $(PACKAGE)
	$(BIN)/python -m tests.storage_model --seconds $(or $(SECONDS),600) \
		--first $(or $(SEED),$(shell date +%s)) $(FUZZ_ARGS)

torture: $(PACKAGE)
	HEADRACE_POWER_CYCLES=10 $(BIN)/pytest tests/cluster/test_power_loss.py
	$(BIN)/python -m tests.cluster.torture --hours $(or $(HOURS),1)

test-java: $(PACKAGE)
	tests/java/install.sh
	$(PYTEST) tests/java $(PYTEST_ARGS)

churn: $(PACKAGE)
	HEADRACE_CHURN_SECONDS=$(or $(SECONDS),60) HEADRACE_CHURN_SEED=$(or $(SEED),1) \
		$(BIN)/pytest tests/broker/test_groups_churn.py tests/broker/test_client_churn.py $(PYTEST_ARGS)

test-spark-cluster: $(PACKAGE)
	$(BIN)/pytest -rs tests/spark_cluster $(PYTEST_ARGS)

test-spark-cluster-short: $(PACKAGE)
	$(PYTEST) -rs tests/spark_cluster/test_batch.py

# Their own environment: Quix Streams needs another version of confluent-kafka.
ECOSYSTEM := .venv-ecosystem
test-ecosystem:
	@test -x $(ECOSYSTEM)/bin/python || $(PYTHON) -m venv $(ECOSYSTEM)
	@HEADRACE_COMPILE=0 $(ECOSYSTEM)/bin/pip install --quiet --disable-pip-version-check . faust-streaming==0.15.3 \
		quixstreams==3.28.1 'faststream[confluent]==0.7.8' 'hypothesis' 'pytest>=9' pytest-timeout
	$(ECOSYSTEM)/bin/pytest tests/ecosystem $(PYTEST_ARGS)

test-spark-long: $(PACKAGE)
	$(BIN)/pytest tests/spark_long $(PYTEST_ARGS)

bench: $(PACKAGE)
	$(BIN)/python -m bench $(BENCH_ARGS)
	$(if $(BENCH_ARGS),,$(BIN)/python -m bench.tls)

bench-spark: $(PACKAGE)
	tests/java/install.sh
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	PYTHONPATH=src $(BIN)/python docs/generate.py --check
	$(BIN)/python tools/blocking_client.py --check

format: $(TOOLS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(TOOLS)
	PYTHONPATH=src $(BIN)/python docs/generate.py

dist: $(VENV)/bin/python
	HEADRACE_URL=$(URL) $(BIN)/python -m release $(PYTHONS)

wheels:
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/pip install --quiet --disable-pip-version-check 'cibuildwheel>=3.2'
	HEADRACE_URL=$(URL) .venv-wheels/bin/cibuildwheel --platform linux --output-dir dist \
		$(if $(ARCHS),--archs $(ARCHS))

clean:
	rm -rf $(VENV) $(ECOSYSTEM) .venv-wheels build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find src tests bench demo docs examples release tools -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "'$(PYTHON)' is not Python 3.11 or newer, which Headrace needs." \
			"Name another Python, for example: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed (on Debian: apt install python3-venv)"; exit 1; }

$(TOOLS): pyproject.toml | $(VENV)/bin/python
	@echo "Installing the dependencies of Headrace, its tests and its lint into $(VENV)"
	@$(BIN)/python -c '$(NEEDS)' > $(VENV)/requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: \
		--no-binary pyspark -r $(VENV)/requirements.txt wheel
	@touch $@

# Not an editable install: its compiled modules would be next to the sources and hide later edits.
$(PACKAGE): $(TOOLS) setup.py README.md $(SOURCES)
	@echo "Building and installing Headrace into $(VENV) (the first build compiles for a minute)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .
	@$(BIN)/python -c 'import headrace; print("The hot modules run", \
		"compiled" if headrace.compiled() else "uncompiled: pip install -v . prints the reason")'
	@touch $@
