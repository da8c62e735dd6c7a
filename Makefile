# What each command does: make help. Everything happens in .venv, which each command sets up.

PYTHON ?= python3
PYTEST_ARGS ?=
# How many tests run at once; 0 for one after the other, in one process.
WORKERS ?= auto

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/.tools
PACKAGE := $(VENV)/.package
# Directories are listed too, so that a deleted file counts as a change.
SOURCES := $(shell find src -name __pycache__ -prune -o \( -name '*.py' -o -name py.typed -o -type d \) -print)
NEEDS := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print( \
	*p["build-system"]["requires"], *p["project"]["dependencies"], \
	*p["project"]["optional-dependencies"]["dev"], sep="\n")

.PHONY: help demo test test-java bench lint format docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       start a broker, use it through a real client, kill it, lose nothing"
	@echo "make test       all tests but those that need Java, against the compiled build"
	@echo "make test-java  kcat, Apache Kafka's Java client and its tools against a broker"
	@echo "make bench      Headrace beside Apache Kafka on this machine"
	@echo "make lint       format, rules, types, rooms, documentation that is up to date"
	@echo "make format     let ruff format and fix what it can"
	@echo "make docs       write the generated pages again"
	@echo "make clean      remove what the commands made"

demo: $(PACKAGE)
	@$(BIN)/python demo/demo.py

test: $(PACKAGE)
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=worksteal --ignore=tests/java $(PYTEST_ARGS)

test-java: $(PACKAGE)
	tests/java/install.sh
	$(BIN)/pytest tests/java $(PYTEST_ARGS)

bench: $(PACKAGE)
	$(BIN)/python -m bench $(BENCH_ARGS)

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	PYTHONPATH=src $(BIN)/python docs/generate.py --check

format: $(TOOLS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(TOOLS)
	PYTHONPATH=src $(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find src tests bench demo docs -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Headrace needs Python 3.11 or newer, and '$(PYTHON)' is not:" \
			"name another, as in: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed (on Debian: apt install python3-venv)"; exit 1; }

$(TOOLS): pyproject.toml | $(VENV)/bin/python
	@echo "Installing what Headrace, its tests and its lint need into $(VENV)"
	@$(BIN)/python -c '$(NEEDS)' > $(VENV)/requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: \
		-r $(VENV)/requirements.txt wheel
	@touch $@

# Not an editable install: its compiled modules would lie beside the sources and hide later edits.
$(PACKAGE): $(TOOLS) setup.py README.md $(SOURCES)
	@echo "Building and installing Headrace into $(VENV) (the first build compiles for a minute)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .
	@$(BIN)/python -c 'import headrace; print("The hot modules run", \
		"compiled" if headrace.compiled() else "uncompiled: pip install -v . says why")'
	@touch $@
