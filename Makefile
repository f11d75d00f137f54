# One command sets up and runs the broker: make run. One sets up and runs the tests: make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STEP := scripts/step.sh
PIP := $(BIN)/pip install -q --disable-pip-version-check
COMPILED := $(shell find kbroker/_fast -name '*.pyx' -o -name '*.pxd' -o -name '*.h')

.PHONY: run test build extensions debug lint types imports crash simulation spark scale soak soak-hour first-run wheels bench bench-e2e bench-compare bench-instructions plots clean tools java

$(BIN)/python:
	@$(STEP) "virtual environment" $(PYTHON) -m venv $(VENV)

# What a broker needs. The package is installed without its extensions: they are compiled in place, once. pip leaves its
# packages' bytecode to their first import: it would compile many more modules than a broker loads.
$(VENV)/.installed: pyproject.toml setup.py | $(BIN)/python
	@$(STEP) "build tools" $(PIP) --no-compile "setuptools>=77" wheel "Cython==3.3.1"
	@KBROKER_EXTENSIONS=none $(STEP) "packages" $(PIP) --no-compile --no-build-isolation -e .
	@touch $@

# What the tests need beside it.
$(VENV)/.test-installed: $(VENV)/.installed
	@KBROKER_EXTENSIONS=none $(STEP) "packages of tests and Spark" $(PIP) --no-build-isolation -e ".[test,spark]"
	@touch $@

build/.compiled: $(VENV)/.installed setup.py $(COMPILED)
	@$(STEP) "compiled modules" $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

extensions: build/.compiled

build: $(VENV)/.test-installed extensions
	@$(BIN)/python -m compileall -q kbroker

run: extensions
	@$(BIN)/kbroker serve $(ARGS)

test: build
	scripts/run_tests.sh

lint: build
	$(BIN)/ruff check .

types: build
	$(BIN)/mypy

imports: build
	$(BIN)/lint-imports

tools:
	scripts/fetch_tools.sh

# The unit tests on a build with bounds checks and internal invariants, beside the usual one.
debug: build
	KBROKER_DEBUG=1 $(BIN)/python setup.py -q build --build-lib build/debug --build-temp build/debug-temp
	PYTHONPATH=$(CURDIR)/build/debug:$(CURDIR) $(BIN)/pytest -q tests/unit tests/fuzz \
	  tests/crash/test_wal_torn.py tests/crash/test_wal_faults.py

# 50 kills, half over a folder, half over S3, and the rest of tests/crash: about 15 minutes. A failure prints
# KBROKER_CRASH_SEED.
crash: build
	KBROKER_CRASH_ROUNDS=50 $(BIN)/python -m pytest tests/crash -q

# The storage layer under simulated crashes, faults and two brokers that contend: about 20,000 new histories in 15
# minutes. A failure prints KBROKER_SIMULATION_SEED. Then a cluster of brokers for KBROKER_CLUSTER_SECONDS, an hour by
# default: new histories in two processes, about 500,000; a failure prints the seed and its last events.
simulation: build
	KBROKER_SIMULATION_SECONDS=$${KBROKER_SIMULATION_SECONDS:-900} $(BIN)/python -m pytest tests/simulation -q -s
	$(BIN)/python -m tests.simulation.cluster --first $$(date +%s)000 --histories 1000000000 --processes 2 \
	  --seconds $${KBROKER_CLUSTER_SECONDS:-3600}

# Consumer groups, transactions, Streams, Connect and MirrorMaker 2, with kills: about 10 minutes.
java: build tools
	$(BIN)/python -m pytest tests/integration -m "java and slow" -q

# Spark on real sessions, everything, with kills of drivers, jobs and brokers: 20 to 30 minutes.
spark: build tools
	scripts/fetch_spark_jars.sh
	$(BIN)/python -m pytest tests/integration -m spark -q

# 10,000 partitions; 20 million one-record batches; a manifest of a million objects (1 minute): about 3 minutes, 4 GiB
# of disk.
scale: build
	$(BIN)/python -m pytest tests/scale -q -s

# The hot functions beside their floors: about 15 seconds.
bench: build
	$(BIN)/python -m pytest bench --ignore=bench/e2e -q --benchmark-min-time=0.0001 --benchmark-max-time=0.2 \
	  --benchmark-columns=min,median,ops --benchmark-group-by=group

# Against Apache Kafka in alternation, three rounds: about 25 minutes, 10 GiB of disk, on a quiet machine.
bench-e2e: build tools
	scripts/fetch_bench_tools.sh
	$(BIN)/python -m bench.e2e --history bench/history.jsonl $(ARGS)

# Fails when a ratio of the newest results is worse than those before it by more than a tenth.
bench-compare: build
	$(BIN)/python -m bench.e2e.history bench/history.jsonl

# Instructions per call of the hot functions against those kept; needs valgrind: about a minute.
bench-instructions: build
	$(BIN)/python -m bench.instructions --against bench/instructions.json

# Writes the tables of docs/performance.md and its pictures from the history, and prints what larger machines would do
# and cost.
plots: build
	$(BIN)/pip install -q "matplotlib>=3.9"
	$(BIN)/python -m bench.tables
	$(BIN)/python -m bench.plots
	$(BIN)/python -m bench.scaling

# A minute of producing against a log budget of 1 GiB, three rounds: about 5 minutes, 25 GiB of disk.
soak: build tools
	scripts/fetch_bench_tools.sh
	$(BIN)/python -m bench.e2e --brokers kbroker --workloads steady

# A mixed load on a broker of 192 MiB for SOAK_SECONDS, an hour by default; writes bench/soak_hour.csv and its plot,
# docs/plots/soak-hour.svg.
soak-hour: build
	$(BIN)/pip install -q "matplotlib>=3.9"
	$(BIN)/python -m bench.soak_hour --seconds $${SOAK_SECONDS:-3600} $(ARGS)
	$(BIN)/python -m bench.soak_hour --plot

# A fresh clone, its `make run`, and the commands that this prints: as long as a first build.
first-run: build
	$(BIN)/python -m pytest tests/integration/test_first_run.py -q

# Wheels for each CPython 3.11 to 3.13 found, in dist: two minutes for each, and one before the first.
wheels:
	scripts/build_wheels.sh

clean:
	rm -rf build dist kbroker.egg-info
	find kbroker -name '*.so' -delete
