# Every target makes its own environment first: a machine needs only make and Python 3.11 or newer.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# What a cluster needs; what its tests need comes on top.
RUN_MADE := $(VENV)/.made-run
MADE := $(VENV)/.made
# Another interpreter: make up PYTHON=/opt/python3.12/bin/python3
PYTHON ?=
# More for the command: make up ARGS="--brokers 5"
ARGS ?=
# How long `make verify` runs seeds of core bed and world (what has a number comes on top).
MINUTES ?= 10
# Processes for tests that compute; one for each core by default.
JOBS ?= auto
# Unit tests wait for a third of their time: two more than cores.
UNIT_JOBS ?= $(shell expr 2 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1))
# Real clusters at a time; they wait more than they compute. Tests that judge a time have one alone.
CLUSTERS ?= 2
# How many seeds `make determinism` runs again.
SEEDS ?= 25
# The seeds of `make worlds`.
WORLDS ?= 0-3

SOURCES := client broker controller gateway chaos interop tests
PYTEST := $(BIN)/python -m pytest -q
PARALLEL := -n $(UNIT_JOBS) --dist worksteal

# PySpark is half a gigabyte: it is installed for `make test` and `make spark`, not for the others.
SPARK_MADE := $(VENV)/.made-spark
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
OR_SAY := || { echo "The installation failed; is the package index reachable?"; exit 1; }
PARTS := $(BIN)/python -m tests.parts --jobs $(JOBS) --clusters $(CLUSTERS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help up demo chaos worlds determinism verify test interop interop-diff interpreters spark java check bench format docs stubs clean

help: ## Say what there is to make.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

# exec: the command takes the place of the shell, so Ctrl-C and SIGTERM reach it and nothing else,
# and make waits until it has stopped all nodes.
up: $(RUN_MADE) ## Start a local cluster of 3 controllers and 3 brokers; Ctrl-C stops it.
	@exec $(BIN)/paceline up --doors grpc,remoting $(ARGS)

demo: $(RUN_MADE) ## Send 336,776 flight records, kill the master half-way, lose nothing.
	@exec $(BIN)/paceline demo $(ARGS)

chaos: $(MADE) ## Break real processes in every way we know; a verdict and a report for each.
	@exec $(BIN)/paceline chaos run all $(ARGS)

worlds: $(MADE) ## A few simulated clusters from their seeds: WORLDS=0-3.
	@$(BIN)/python -m paceline_chaos.cluster_sim --seeds $(WORLDS)

determinism: $(MADE) ## Run simulated worlds again in other ways: equal traces. SEEDS=25.
	@$(BIN)/python -m paceline_chaos.cluster_sim --determinism $(SEEDS)

bench: $(RUN_MADE) ## Measure this machine and write docs/BENCHMARKS.md.
	@exec $(BIN)/paceline bench --all --write docs/BENCHMARKS.md $(ARGS)

verify: $(MADE) ## Mutants, determinism, scripts, and MINUTES=10 of seeds; adds to docs/verification.jsonl.
	@$(BIN)/python -m paceline_chaos.verify --minutes $(MINUTES) $(ARGS)

test: java $(SPARK_MADE) check ## Everything: check, simulated clusters, real ones, and Spark (needs Java 17).
	@$(PARTS)
	@echo "All tests passed."

interop: $(MADE) ## RocketMQ's own clients against a cluster (needs Java 17, Maven, Go, Node, Rust).
	@$(BIN)/python -m interop.install
	@$(PARTS) python_client interop

interop-diff: $(MADE) ## The same against a real RocketMQ 5.5, fetched from Maven Central.
	@$(BIN)/python -m interop.install
	@$(PYTEST) --timeout 600 --peer rocketmq tests/interop

interpreters: $(MADE) ## Check and a few worlds with every other Python, 3.11 or newer, found here.
	@$(BIN)/python -m tests.interpreters

spark: java $(SPARK_MADE) ## Tests of the Spark source, sinks and export alone, on a real cluster.
	@$(PARTS) spark

check: $(MADE) ## Format, lint, types, house rules and unit tests: some two minutes.
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "Not formatted: run make format"; exit 1; }
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy --no-error-summary
	@$(PYTEST) $(PARALLEL) --timeout 30 tests/tidy tests/unit

format: $(MADE) ## Format the code and sort imports.
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

docs: $(MADE) ## Write the documents that are generated from code.
	@$(BIN)/python -m tests.tidy.generated

stubs: $(MADE) ## Make the protobuf modules of RocketMQ's gRPC protocol from their .proto files.
	@$(BIN)/python -m tests.tidy.stubs

clean: ## Remove the environment and all caches (not paceline-data).
	rm -rf $(VENV) .venv-3.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again whenever pyproject.toml or constraints.txt change. The stamp is written last: an
# interrupted installation is repeated.
$(RUN_MADE): pyproject.toml constraints.txt
	@python=; \
	for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "paceline needs Python 3.11 or newer; $(or $(PYTHON),python3) is: $$( \
	    $(or $(PYTHON),python3) --version 2>&1 | tail -n 1)" \
	    "- install one, or name it: make PYTHON=/path/to/python3"; exit 1; fi; \
	if ! $(BIN)/python -c 'import pip' >/dev/null 2>&1; then \
	  if ! $$python -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "$$python has no venv module." \
	      "On Debian or Ubuntu: apt-get install python3-venv"; exit 1; fi; \
	  echo "Making $(VENV) with $$($$python --version) ..."; \
	  $$python -m venv --clear $(VENV) || exit 1; \
	fi; \
	echo "Installing what paceline needs into $(VENV) (only the first time, some ten seconds) ..."; \
	$(PIP) --no-compile -e '.[grpc]' $(OR_SAY); \
	touch $(RUN_MADE)

$(MADE): $(RUN_MADE)
	@echo "Installing what its tests need into $(VENV) (only the first time, about half a minute) ..."
	@$(PIP) -e '.[dev]' $(OR_SAY)
	@touch $(MADE)

$(SPARK_MADE): $(MADE)
	@echo "Installing PySpark into $(VENV) (only the first time, a minute or two) ..."
	@$(PIP) -e '.[dev,spark]' $(OR_SAY)
	@touch $(SPARK_MADE)

# Before anything that takes long: without a Java the tests of Spark fail, they are never left out.
java: $(MADE)
	@if ! $(BIN)/python -m tests.spark.java 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing openjdk-17-jre-headless ..."; \
	    apt-get update -qq && apt-get install -qq --yes openjdk-17-jre-headless >/dev/null; fi; \
	  $(BIN)/python -m tests.spark.java; fi
