#!/usr/bin/env bash
# Everything a change must pass: lint, types, import rules, all tests with real clients over a folder and over S3, a
# short crash run, a short fuzz, a short Spark job, and the unit tests on a debug build. Expects the extensions built.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
export PYTHONDONTWRITEBYTECODE= # or every process would compile the tests again
tests=(tests bench --ignore=tests/fuzz --ignore=bench/e2e)

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "tools"
{ scripts/fetch_tools.sh && scripts/fetch_spark_jars.sh; } || [ -z "${CI:-}" ]
step "lint, types, import rules; the debug build and a collection of the tests begin"
# It is needed last, and takes the processors' time that the tests leave: these wait a lot, for disks and for time-outs.
mkdir -p build
KBROKER_DEBUG=1 nice -n 19 $bin/python setup.py -q build --build-lib build/debug --build-temp build/debug-temp \
  >build/debug.log 2>&1 &
debug_build=$!
trap 'kill $debug_build 2>/dev/null || true' EXIT
$bin/python -m pytest -q --collect-only "${tests[@]}" >build/collected.log 2>&1 & # compiles the tests for all processes
collection=$!
$bin/ruff check .
$bin/mypy
$bin/lint-imports
$bin/python scripts/update_readme.py --check
wait $collection || { cat build/collected.log; exit 1; }
step "tests and benchmarks" # in the order of their files: the short ones come last, so that all processes end together
$bin/python -m pytest -q -m "not slow" -n 5 --dist loadfile --no-loadscope-reorder --durations=40 \
  --benchmark-disable "${tests[@]}"
step "the rest of the debug build"
wait $debug_build || { cat build/debug.log; exit 1; }
step "tests on the debug build" # which finds more of what the fuzz tests look for
export PYTHONPATH="$PWD/build/debug:$PWD"
$bin/python -P -c "from kbroker._fast.base.invariant import DEBUG_BUILD; assert DEBUG_BUILD"
$bin/pytest -q -n 2 --dist loadfile tests/unit/_fast tests/unit/wire tests/fuzz tests/crash/test_wal_torn.py tests/crash/test_wal_faults.py
step "done"
