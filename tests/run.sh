#!/bin/sh
# Everything that decides, in the order that fails fastest. Run by `make test`.
set -eu
ruff check .
ruff format --check .
mypy
lint-imports --no-cache 2>/dev/null || lint-imports

# The console's tests drive a real browser; a machine without one gets it here, or is told.
if [ -z "${CHROMIUM:-}" ] && ! command -v chromium >/dev/null 2>&1; then
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "installing chromium for the console's tests"
        (apt-get update -q && apt-get install -y -q --no-install-recommends chromium) >/dev/null 2>&1 \
            || echo "chromium could not be installed: browser tests will be skipped"
    else
        echo "no chromium (set CHROMIUM to its path): browser tests will be skipped"
    fi
fi

# The record store's tests start a throw-away Postgres server; a machine without one gets it here.
if ! command -v initdb >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "installing postgresql for the record store's tests"
        (apt-get update -q && apt-get install -y -q --no-install-recommends postgresql) >/dev/null 2>&1 \
            || echo "postgresql could not be installed: its tests will be skipped"
    else
        echo "no Postgres server (initdb in the PATH): its tests will be skipped"
    fi
fi

# Tests that start processes share two cores badly, so only the quick ones run in parallel.
python -m pytest tests/unit tests/property tests/simulation tests/records tests/test_tidy.py -n 2
python -m pytest tests/integration tests/security tests/faults tests/console
