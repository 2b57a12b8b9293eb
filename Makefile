# Two commands are enough: `make up` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONDUCTOR := $(BIN)/conductor

.PHONY: up env test test-engines bench bench-records bench-console soak check format lock screenshots policy-report clean

up: env  ## Start the service, the console and an emulated fleet; Ctrl-C stops everything.
	@exec $(CONDUCTOR) up

env: $(VENV)/.complete  ## Make .venv from the lock file.

$(VENV)/.complete: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test: env  ## Everything that decides: style, types, imports, tests. Installs a browser if there is none.
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/run.sh

check: env  ## Style, types and import directions only.
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: env
	$(BIN)/ruff check --fix-only . ; $(BIN)/ruff format .

test-engines: env  ## Real vLLM and SGLang on the CPU, from the environment in CONDUCTOR_ENGINES.
	$(BIN)/python -m pytest -m vllm tests/engines -s

screenshots: env  ## Pictures of the console on a seeded scenario.
	$(BIN)/python -m tests.console.screenshots

bench: env  ## Speed ratios against named baselines, printed.
	$(BIN)/python -m tests.bench

bench-records: env  ## The audit's questions over five million decisions; needs about 20 GB of disk.
	$(BIN)/python -m tests.bench records

bench-console: env  ## The console left open, with a hundred readers, over a large fleet; needs a quiet machine.
	$(BIN)/python -m tests.bench console_live
	$(BIN)/python -m tests.bench console_sessions
	$(BIN)/python -m tests.bench console_scale

soak: env  ## The long runs: ten minutes (CONDUCTOR_OUTAGE_S) without the database, a million rows.
	$(BIN)/python -m pytest -m soak tests/faults tests/integration tests/records -s

policy-report: env  ## The policy table and plots of the README, from the conversation trace.
	$(BIN)/python -m core.simulation.policy_report

lock: env  ## Pin what pyproject.toml and requirements.in ask for.
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --no-annotate pyproject.toml requirements.in -o requirements.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --no-annotate --constraint requirements.lock pyproject.toml docker/requirements.in \
		-o docker/requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
