#!/usr/bin/env bash
# Fetches what the integration tests drive into .tools/: the Kafka jars (Maven), versitygw (Go), kcat (apt).
# Each part that cannot be had is named in one line; the tests that need it are skipped unless CI is set.
set -u
cd "$(dirname "$0")/.."
mkdir -p .tools/bin .tools/kafka
missing=0
say() { printf 'fetch_tools: %s\n' "$*" >&2; }

if ! ls .tools/kafka/kafka-tools-*.jar >/dev/null 2>&1; then
  if ! mvn -q -B -f scripts/kafka-tools.pom.xml dependency:copy-dependencies \
      -DoutputDirectory="$PWD/.tools/kafka" -DincludeScope=runtime; then
    say "the Kafka jars could not be fetched: Maven and a Maven repository are needed"; missing=1
  fi
fi
if [ ! -x .tools/bin/versitygw ]; then
  if ! GOBIN="$PWD/.tools/bin" GOFLAGS=-mod=mod go install github.com/versity/versitygw/cmd/versitygw@v1.8.0; then
    say "versitygw could not be built: Go and a module proxy are needed"; missing=1
  fi
fi
if ! command -v kcat >/dev/null 2>&1; then
  if ! { apt-get update -qq && apt-get install -y -qq kcat; } >/dev/null 2>&1; then
    say "kcat could not be installed: apt-get install kcat as root"; missing=1
  fi
fi
exit $missing
