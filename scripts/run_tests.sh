#!/usr/bin/env bash
# Everything a change must pass: lint, types, import rules, all tests with real clients over a folder and over S3, a
# short crash run, a short fuzz, a short Spark job, and the unit tests on a debug build. Expects the extensions built.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "tools"
{ scripts/fetch_tools.sh && scripts/fetch_spark_jars.sh; } || [ -z "${CI:-}" ]
step "debug build, beside it lint, types, import rules"
KBROKER_DEBUG=1 $bin/python setup.py -q build --build-lib build/debug --build-temp build/debug-temp &
debug_build=$!
$bin/ruff check .
$bin/mypy
$bin/lint-imports
$bin/python scripts/update_readme.py --check
wait $debug_build
step "tests and benchmarks" # in the order of their files: the short ones come last, so that all processes end together
$bin/python -m pytest -q -m "not slow" -n 5 --dist loadfile --no-loadscope-reorder --durations=40 \
  tests bench --benchmark-disable --ignore=tests/fuzz --ignore=bench/e2e
step "tests on the debug build" # which finds more of what the fuzz tests look for
export PYTHONPATH="$PWD/build/debug:$PWD"
$bin/python -P -c "from kbroker._fast.base.invariant import DEBUG_BUILD; assert DEBUG_BUILD"
$bin/pytest -q -n 2 --dist loadfile tests/unit/_fast tests/unit/wire tests/fuzz tests/crash/test_wal_torn.py tests/crash/test_wal_faults.py
step "done"
