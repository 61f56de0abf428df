# Everything that a fresh clone needs besides Python >= 3.11 and Java >= 17 is set up from here.

VENV   := .venv
BIN    := $(VENV)/bin
WANTED := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	if $$p -c '$(WANTED)' 2>/dev/null; then command -v $$p; break; fi; done)
PROCESSES ?= 4
CORES  ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
SECONDS ?= 300
RESCALING ?= 600
REAL   ?= 1800
REAL_SEEDS ?= 4
SEED   ?= $(shell date +%s)
CODE   := meander

# Tests, demo and benchmarks start hundreds of processes: each would compile our code anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv java demo bench bench-checkpoints bench-migration bench-incremental bench-flow-control bench-control bench-windows test unit soak check docs format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: java ## run the demo: real flights through Kafka and Spark, bins move, every result checked
	@$(BIN)/meander demo

bench: java ## measure Meander beside a plain loop and a bare echo (BENCH="--runs 1" for less)
	@$(BIN)/python -m benchmarks $(BENCH)

bench-checkpoints: java ## measure checkpoints, recovery and exactly once (BENCH="--runs 1" for less)
	@$(BIN)/python -m benchmarks.checkpoints $(BENCH)

bench-migration: java ## measure latency while bins move (BENCH="--only 2a --runs 1" for less)
	@$(BIN)/python -m benchmarks.migration $(BENCH)

bench-incremental: java ## measure collections that are kept up to date (BENCH="--scale small" for less)
	@$(BIN)/python -m benchmarks.incremental $(BENCH)

bench-flow-control: venv ## measure flow control of a part beside other ways (BENCH="--small" for less)
	@$(BIN)/python -m benchmarks.flow_control $(BENCH)

bench-control: java ## measure changes of the plan of a running flow (BENCH="--small" for less)
	@$(BIN)/python -m benchmarks.control $(BENCH)

bench-windows: java ## measure windows and joins beside folds (BENCH="--small" for less)
	@$(BIN)/python -m benchmarks.windows $(BENCH)

test: java ## run all tests, with one real broker
	@$(BIN)/pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		--durations 12

unit: venv ## run the unit tests, doctests and examples alone (no broker)
	@$(BIN)/pytest $(CODE) tests/unit examples

soak: java ## try random runs for SECONDS (300) on all cores, rescales for RESCALING (600), all faults on real flows for REAL (1800)
	@MEANDER_PROPERTY_SECONDS=$(SECONDS) MEANDER_SEED=$(SEED) MEANDER_PARTS=$(CORES) \
		$(BIN)/pytest -n $(CORES) --dist each -m soak --timeout $$(($(SECONDS) + 600)) \
		-o faulthandler_timeout=0 tests/property
	@MEANDER_RESCALE_SECONDS=$(RESCALING) MEANDER_SEED=$(SEED) \
		MEANDER_REAL_SECONDS=$(REAL) MEANDER_REAL_SEEDS=$(REAL_SEEDS) \
		$(BIN)/pytest -m soak --timeout $$(($(RESCALING) + 600)) \
		-o faulthandler_timeout=0 tests/fault

check: venv ## lint, format, types, one-way imports, and retired words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.support.retired_words

docs: venv ## build the documentation as a site in build/site; dead links fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

format: venv ## put the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

venv: $(VENV)/.complete ## set up the virtual environment with the pinned versions

$(VENV)/.complete: requirements.txt pyproject.toml
	@if [ -z '$(PYTHON)' ]; then \
		echo "Python: 3.11 or newer is wanted, found `python3 --version 2>&1 || echo none`;" \
			"install it, or name it with make PYTHON=/path/to/python3.11" >&2; exit 2; fi
	@'$(PYTHON)' -c '$(WANTED)' || { \
		echo "Python: 3.11 or newer is wanted, $(PYTHON) is `'$(PYTHON)' --version 2>&1`" >&2; exit 2; }
	@echo 'Sets up $(VENV), once: one or two minutes'
	@test -x $(BIN)/python && $(BIN)/python -c '$(WANTED)' || '$(PYTHON)' -m venv --clear $(VENV) || { \
		echo "Python: $(PYTHON) cannot make a virtual environment;" \
			"on Debian install the package python3-venv" >&2; rm -rf $(VENV); exit 2; }
	@{ $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
		-r requirements.txt || echo failed; } | awk -v all="$$(grep -c == requirements.txt)" \
		'/^Collecting/ && ++n % 10 == 0 { print "  has fetched " n " of " all " packages" } \
		/^Installing/ { print "  installs them" } /^failed$$/ { exit 1 } { fflush() }'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --editable .
	@touch $@

java: venv ## look for Java >= 17; on Debian as root, install it where it is missing
	@$(BIN)/python -m meander.connectors.local_broker.java

clean: ## remove what the targets above have made here (the cache of Kafka's jars stays)
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache \
		.hypothesis spark-warehouse
	find -L $(CODE) tests -name __pycache__ -type d -exec rm -rf {} +
