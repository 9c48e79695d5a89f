# Every target sets up what it needs; `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Settings for single runs: make test PYTEST="-k listeners", make bench BENCH=kernels
PYTEST ?= -n auto --maxprocesses 4
BENCH ?=
PKG ?= core
INTEROP ?=
REPORT ?=
KILLS ?=
MINUTES ?= 2
ENSEMBLE ?=
SEED ?=
SEEDS ?=
BROWSER ?=
SIM ?=

# Brokers, tools and tests are many processes: they share compiled modules, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help machine setup demo recording test unit fmt lint types bench bench-spark kafka interop clients crash sim chaos spark-test spark-versions ingest-kills sink-kills report-look browser wheel-test lakehouse-test spark-wheel conformance docs lock clean chaos-copying soak

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

# Before anything else: is there a Python and a Java that will do?
machine:
	@tools/check-machine >/dev/null

$(INSTALLED): requirements.lock pyproject.toml | machine
	@$(BIN)/python -c '' 2>/dev/null || \
		"$$("$$(tools/check-machine)" tools/fastest_python.py)" -m venv --clear $(VENV)
	@echo "Installing what requirements.lock pins into $(VENV) (once)." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes \
		--requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

setup: machine $(INSTALLED) ## make the virtual environment in .venv, from requirements.lock

demo: setup ## the main job: a tour that checks every step it shows
	@$(BIN)/klamm demo

recording: setup ## run the tour and keep what it shows in docs/demo.svg
	@$(BIN)/python -m tools.record_demo

test: lint types ## the linter, the type checker and the tests
	@$(BIN)/python -m tools.run_tests $(PYTEST)

unit: setup ## one package's tests that need no process, in seconds; PKG=core or PKG=broker/log
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(BIN)/python -m pytest -q -n auto \
		--maxprocesses 4 -m "not real and not interop and not crash and not spark_heavy and not clients" \
		tests/$(PKG)

fmt: setup ## format the code and mend what the linter can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

lint: setup ## the linter, and whether the code is formatted
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: setup ## the type checker
	@$(BIN)/mypy

bench: setup ## measure; BENCH=kernels for one benchmark of bench/, BENCH="growth --sizes 1000000" for options
	@$(BIN)/python -m bench $(BENCH)

bench-spark: setup ## side by side with Spark's own Kafka connector; SPARK_BENCH="--records 1000000"
	@$(BIN)/python -m bench.spark $(SPARK_BENCH)

kafka: setup ## fetch Apache Kafka's jars from Maven Central, for comparisons
	@$(BIN)/python tools/fetch_kafka.py

interop: setup ## run together with Apache Kafka, and compare with it; INTEROP="-k tools" for a part
	@if libs="$$($(BIN)/python tools/fetch_kafka.py)"; then export KAFKA_LIBS="$$libs"; fi; \
		$(BIN)/python -m pytest -m interop $(INTEROP)

spark-test: setup ## Spark on a cluster of its own, killed and restarted, with brokers that die
	@$(BIN)/python -m pytest -m spark_heavy

spark-versions: setup ## format("klamm") on every pyspark that it is for, each in an environment of its own
	@$(BIN)/python -m pytest -m spark_versions

ingest-kills: setup ## ingest while drivers, executors and workers are killed; KILLS="--records 20000000 --kills 20"
	@$(BIN)/python -m tests.pipeline.ingest.kills $(KILLS)

sink-kills: setup ## the transactional sink on Apache Kafka, with kills; KILLS="--records 200000 --kills 200"
	@KAFKA_LIBS="$$($(BIN)/python tools/fetch_kafka.py)" $(BIN)/python -m tests.pipeline.source.sink_kills $(KILLS)

clients: setup ## the test matrix with kafka-python and aiokafka too: groups, administration, restarts
	@$(BIN)/python -m pytest -m clients

crash: setup ## kill controllers and transaction coordinators at every write, before and after it
	@$(BIN)/python -m pytest -m "crash or not crash" tests/real/test_controller_crashes.py \
		tests/real/test_transaction_crashes.py

chaos: setup ## faults on real processes, and a check of what clients saw; MINUTES=2 SEED=7 ENSEMBLE=1
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		$(if $(ENSEMBLE),--zookeepers 3)

soak: setup ## load, joins, topics and faults; fails if memory, descriptors or latencies grow; MINUTES=60
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

chaos-copying: setup ## consume, transform and produce while coordinators, leaders and copiers are killed; KILLS="--kills 20 --seed 7"
	@$(BIN)/python -m tests.chaos.copying $(KILLS)

sim: setup ## klamm's own code on simulated time, network, disks and ZooKeeper; SEED=7, or SEEDS=1000, or SIM=--variants
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS))) $(SIM)

report-look: setup ## look at report.html in a real browser, and keep screenshots in out/; REPORT=FILE for another
	@$(BIN)/python -m tools.report_look $(REPORT)

browser: setup ## the console in a real browser, with screenshots in out/; BROWSER="-k moves" for a part
	@$(BIN)/python -m tools.run_tests -m browser -n auto --maxprocesses 2 $(BROWSER)

wheel-test: setup ## build the wheel, install it into an empty environment, and use it there
	@$(BIN)/python tools/wheel_test.py

lakehouse-test: setup ## the commands of docs/lakehouse.md in an empty environment, from pip install to a query, timed
	@$(BIN)/python -m tools.lakehouse_test

spark-wheel: setup ## build the wheel pyspark-klamm, for a Spark that somebody else manages, into dist
	@$(BIN)/python -m tools.spark_wheel

conformance: setup ## print which rules of the specifications are shown by which tests
	@$(BIN)/python tools/conformance.py

docs: setup ## write the generated documents and tables
	@$(BIN)/python tools/conformance.py --write
	@$(BIN)/python tools/compatibility.py --write
	@$(BIN)/python -m tools.module_tests --write

lock: setup ## resolve the dependencies and write requirements.lock
	@$(BIN)/python tools/lock.py

clean: ## remove the environment and everything that was built
	@rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		src/klamm.egg-info spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
