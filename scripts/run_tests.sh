#!/usr/bin/env bash
# Everything a change must pass: lint, types, import rules, all tests with real clients over a folder and over S3,
# the debug build with the same unit tests, a short fuzz, a short Spark job. Expects the extensions to be built.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "tools"
scripts/fetch_tools.sh || [ -z "${CI:-}" ]

step "lint"
$bin/ruff check .
step "types"
$bin/mypy
step "import rules"
$bin/lint-imports
step "unit, conformance, integration, crash, fuzz"
$bin/python -m pytest -q -m "not slow"
step "debug build"
KBROKER_DEBUG=1 $bin/python setup.py -q build_ext --inplace --force >/dev/null
trap '$bin/python setup.py -q build_ext --inplace --force >/dev/null' EXIT
$bin/python -m pytest -q tests/unit/_fast tests/unit/wire tests/fuzz -m "not slow"
step "done"
