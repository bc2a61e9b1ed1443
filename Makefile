# Event pairing: what can be done here. A bare `make` prints this list.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo setup setup-tests test test-long soak load lint docs docs-serve ci airflow stop clean screenshots lock package licences sbom audit bench-pairing bench-landing bench-publishing bench-whole bench-floors bench-growth bench-shapes bench-hostile-messages bench-stores bench-cluster bench-scaling bench-partitions bench-run bench-idle bench-recovery bench-replay bench-backfill bench-history bench-ledger-retention

KAFKA_PORT ?= 9092
SPARK_PORT ?= 15002
AIRFLOW_PORT ?= 8080
STORE_PORT ?= 9100
REGISTRY_PORT ?= 8081
DOCS_PORT ?= 8000
STORE ?=
SPARK ?=
EXAMPLE ?=
export KAFKA_PORT SPARK_PORT AIRFLOW_PORT STORE_PORT REGISTRY_PORT STORE SPARK EXAMPLE
# Start-up of the project's programs is slow without the bytecode they leave for the next time.
unexport PYTHONDONTWRITEBYTECODE

VENV_PYTHON := .venv/bin/python

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## everything at once: broker, Spark, Airflow, sample calls, one run of the DAG, and what came out; STORE=s3 or azure: tables on a real server of the kind; SPARK=cluster: on a Spark cluster, tables on S3; EXAMPLE=orders, clicks or legs: other topics than calls
	@$(VENV_PYTHON) -m include.local.demo

setup: ## install what is missing: .venv from the lock, jars by Ivy, Spark's settings
setup-tests: ## the same, and what tests, checks and benches need
setup setup-tests:
	@python=; \
	for candidate in $${PYTHON:-python3.11 python3}; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "Python 3.11 with its venv module not found (tried: $${PYTHON:-python3.11 python3}): install python3.11 and python3.11-venv, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	"$$python" -m include.local.setup $(if $(filter setup-tests,$@),--tests)

# Three at a time on two cores, for a test waits an eighth of its time. Each has a broker and a Spark of its own. The tests of one file stay together, the long ones come first.
test: setup-tests ## unit, integration and end-to-end tests, three at a time (9 GB of memory), or AT_ONCE=1
	@$(VENV_PYTHON) -m pytest -n $(or $(AT_ONCE),3) --dist loadfile --no-loadscope-reorder -m "not long"

test-long: setup-tests ## the tests that take long (three quarters of an hour): before a release, and when what they guard is changed
	@$(VENV_PYTHON) -m pytest -m long

soak: setup-tests ## kill jobs at random moments under continuous traffic, then count: KILLS=200, or MINUTES=…, RATE=20 calls a second; STORE=s3: on a store
	@$(VENV_PYTHON) -m tests.soak $(if $(STORE),--store $(STORE)) $(if $(KILLS),--kills $(KILLS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATE),--rate $(RATE))

load: setup-tests ## load for hours: HOURS=1 of traffic at the highest rate that the machine holds (searched for; or RATE=… calls a second), KILLS=6 at the end, a table of laws, PICTURE=docs/images/load.svg
	@$(VENV_PYTHON) -m tests.load $(if $(HOURS),--hours $(HOURS)) $(if $(RATE),--rate $(RATE)) $(if $(KILLS),--kills $(KILLS)) $(if $(PICTURE),--picture $(PICTURE))

lint: setup-tests ## ruff (rules and format), mypy, and the layers of the imports
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

docs: setup-tests ## the documentation as a site in .local/site/html, with a search and a reference from the code; every link is checked
	@$(VENV_PYTHON) -m sphinx -q -W --keep-going -n -c docs/site -d .local/site/doctrees . .local/site/html
	@echo "open .local/site/html/index.html, or: make docs-serve"

docs-serve: docs ## the same, on 127.0.0.1:8000 (another port: DOCS_PORT=18000), until Ctrl-C
	@$(VENV_PYTHON) -m http.server --bind 127.0.0.1 --directory .local/site/html $(DOCS_PORT)

ci: ## what the continuous integration runs: lint and docs beside test
	@.ci/run

airflow: setup ## a command of Airflow itself, on the Airflow of the demo: ARGS="dags list"
	@environment=.local/$(or $(SPARK),$(STORE))/$(EXAMPLE)/airflow/environment.sh; \
	if [ ! -f "$$environment" ]; then echo "no Airflow was started here yet: make demo" >&2; exit 1; fi; \
	source "$$environment"; airflow $(ARGS)

stop: ## end Airflow, Spark, the broker and the store, of every demo; their data stay
	@if [ -f .venv/setup.stamp ]; then $(VENV_PYTHON) -m include.local.stop; else echo "nothing runs: not set up"; fi

clean: stop ## stop, then delete everything that setup and demo made, data included
	@rm -rf .venv .local .pytest_cache .ruff_cache .mypy_cache .hypothesis

screenshots: setup-tests ## the pictures of the documentation, of a made-up history and an Airflow of its own; needs chromium on the PATH
	@$(VENV_PYTHON) -m tests.helpers.screenshots
	@$(VENV_PYTHON) -m tests.helpers.airflow_screenshots

UV_COMPILE = .venv/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"

lock: setup ## compile requirements.lock, and those of tests, celery and lineage, from the .txt beside them, with hashes
	@$(UV_COMPILE) requirements.txt --output-file requirements.lock
	@# The others have what the first has not; their end would list all that was left out.
	@for other in tests celery lineage; do \
	  $(UV_COMPILE) requirements-$$other.txt --constraints requirements.lock $$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements.lock) --output-file requirements-$$other.lock; \
	  sed -i '/^# The following packages were excluded/,$$d' requirements-$$other.lock; \
	done

package: setup ## the wheel for an Airflow of your own, in .local/package: docs/package.md
	@.venv/bin/uv build --quiet --wheel --out-dir .local/package

licences: setup ## docs/licences.md, the licences of all that is shipped; fails if one is not known or may not be shipped
	@$(VENV_PYTHON) -m include.local.licences

sbom: setup ## the bill of materials of packages and jars, CycloneDX as JSON: FILE=.local/sbom.cdx.json
	@$(VENV_PYTHON) -m include.local.sbom $(FILE)

audit: setup ## known vulnerabilities of the packages in the lock; status 2 where no source of them answers
	@$(VENV_PYTHON) -m include.local.audit

bench-pairing: setup-tests ## pairing against a bare shuffle and against DuckDB, at 2 and 5 million events (10 minutes)
	@$(VENV_PYTHON) -m tests.benches.pairing

bench-landing: setup-tests ## landing against landing without parsing, at 2 and 5 million events (10 minutes)
	@$(VENV_PYTHON) -m tests.benches.landing

bench-publishing: setup-tests ## publishing exactly once against plain producing at least once (5 minutes)
	@$(VENV_PYTHON) -m tests.benches.publishing

bench-whole: setup-tests ## Kafka to Kafka, cold and warm, at 2 and 10 million events, beside other systems: ARGS="--traffic chains --peer 'NAME=COMMAND' …"
	@$(VENV_PYTHON) -m tests.benches.whole $(ARGS)

bench-floors: setup-tests ## what no system can do without (reading, writing Parquet, shuffling, producing), and what each stage takes above it (10 minutes)
	@$(VENV_PYTHON) -m tests.benches.floors $(ARGS)

bench-growth: setup-tests ## time per event and memory from 0.5 to 20 million events (20 minutes)
	@$(VENV_PYTHON) -m tests.benches.growth

bench-shapes: setup-tests ## hostile shapes, by a worker alone and on the whole way: time, growth and memory of each (25 minutes)
	@$(VENV_PYTHON) -m tests.helpers.hostile_shapes
	@$(VENV_PYTHON) -m tests.benches.shapes

bench-hostile-messages: setup-tests ## 60 families of hostile messages from 10 kB to 10 MB against a plain one, both parsers (3 minutes)
	@$(VENV_PYTHON) -m tests.benches.hostile_messages

bench-stores: setup-tests ## tables on S3 against tables in a folder: 2 and 10 million events, small batches, requests by job (30 minutes)
	@$(VENV_PYTHON) -m tests.benches.stores

bench-cluster: setup-tests ## a Spark cluster of two workers against one process with two cores: 2 and 10 million events, small batches (25 minutes)
	@$(VENV_PYTHON) -m tests.benches.cluster

bench-scaling: setup-tests ## a model of time, shuffle and storage from one and two workers and 0.5 to 20 million events (25 minutes)
	@$(VENV_PYTHON) -m tests.benches.scaling

bench-partitions: setup-tests ## a batch over up to 2 x 1,000 input and 256 output partitions: time, driver memory, the ledger's rows (5 minutes)
	@$(VENV_PYTHON) -m tests.benches.partitions

bench-run: setup-tests ## a scheduled run of 200 new events a topic, and an empty one, through Airflow: where the time goes (8 minutes)
	@$(VENV_PYTHON) -m tests.benches.run

bench-idle: setup-tests ## what broker, Spark and Airflow take while nothing runs: processor time and memory (7 minutes)
	@$(VENV_PYTHON) -m tests.benches.idle

bench-recovery: setup-tests ## time to recover after a kill in each stage (5 minutes)
	@$(VENV_PYTHON) -m tests.benches.recovery

bench-replay: setup-tests ## a replay of two minutes in the middle of 20 and of 60 minutes of 1,000 calls a second (10 minutes)
	@$(VENV_PYTHON) -m tests.benches.replay

bench-backfill: setup-tests ## backfills of quiet hours through Airflow: HOURS=24 without events, and as many in which nothing changes (10 minutes); ARGS=--empty: only the first
	@$(VENV_PYTHON) -m tests.benches.backfill $(if $(HOURS),--hours $(HOURS)) $(ARGS)

bench-history: setup-tests ## a small batch after 1, 1,000 and 5,000 batches of history (30 minutes)
	@$(VENV_PYTHON) -m tests.benches.history

bench-ledger-retention: setup-tests ## a look at the ledger after up to 5,000 batches, with and without its retention (3 minutes)
	@$(VENV_PYTHON) -m tests.benches.ledger_retention
