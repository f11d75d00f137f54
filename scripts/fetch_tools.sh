#!/usr/bin/env bash
# Fetches what the integration tests drive into .tools/: the Kafka jars (Maven, 77 MB), versitygw (Go), our programs
# with Go's clients (Go, 18 MB), kafkajs (npm, 5 MB), kcat (apt).
# Each part that cannot be had is named in one line; the tests that need it are skipped unless CI is set.
set -u
cd "$(dirname "$0")/.."
mkdir -p .tools/bin
missing=0
say() { printf 'fetch_tools: %s\n' "$*" >&2; }

# The copy of the pom says what is there: another pom fetches again.
pom=scripts/kafka-tools.pom.xml
if ! cmp -s "$pom" .tools/kafka/pom.xml || ! ls .tools/kafka-{clients,mirror}/*.jar >/dev/null 2>&1; then
  rm -f .tools/kafka/pom.xml
  fetched="$PWD/.tools/fetched"
  rm -rf "$fetched"
  if mvn -q -B -f "$pom" -Dtools="$fetched" dependency:copy-dependencies@kafka dependency:copy@clients \
    dependency:copy@mirror; then
    rm -rf .tools/kafka .tools/kafka-clients .tools/kafka-mirror
    mv "$fetched"/kafka* .tools/
    cp "$pom" .tools/kafka/pom.xml
  else
    say "the Kafka jars could not be fetched: Maven and a Maven repository are needed"; missing=1
  fi
  rm -rf "$fetched"
fi
# The classes of the tools as a JVM has them once they are loaded, of a run that finds no broker. The options are those
# of tests/integration/java_tools.py, which makes no use of it where it is not.
archive="$PWD/.tools/kafka/classes.jsa"
if [ -e .tools/kafka/pom.xml ] && [ ! -e "$archive" ]; then
  java -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable "-XX:ArchiveClassesAtExit=$archive" \
    -cp "$PWD/.tools/kafka/*" org.apache.kafka.tools.consumer.ConsoleConsumer \
    --bootstrap-server 127.0.0.1:1 --topic none --timeout-ms 500 >/dev/null 2>&1
fi
if [ ! -x .tools/bin/versitygw ]; then
  if ! GOBIN="$PWD/.tools/bin" GOFLAGS=-mod=mod go install github.com/versity/versitygw/cmd/versitygw@v1.8.0; then
    say "versitygw could not be built: Go and a module proxy are needed"; missing=1
  fi
fi
# Our own programs: the checksums of their sources say what is built.
sources=$(cksum tests/integration/go/go.* tests/integration/go/*/*.go)
if [ "$sources" != "$(cat .tools/bin/clients.cksum 2>/dev/null)" ] || [ ! -x .tools/bin/sarama ]; then
  rm -f .tools/bin/clients.cksum
  if go build -C tests/integration/go -trimpath -ldflags "-s -w" -o "$PWD/.tools/bin/" ./franz_go ./sarama; then
    printf '%s\n' "$sources" >.tools/bin/clients.cksum
  else
    say "the programs with Go's clients could not be built: Go and a module proxy are needed"; missing=1
  fi
fi
lock=tests/integration/node/package-lock.json
if ! cmp -s "$lock" .tools/node/installed.json; then
  mkdir -p .tools/node
  cp tests/integration/node/package.json "$lock" .tools/node/
  if npm ci --prefix .tools/node --ignore-scripts --no-audit --no-fund --loglevel=error >&2; then
    cp "$lock" .tools/node/installed.json
  else
    say "kafkajs could not be installed: Node, npm and a package registry are needed"; missing=1
  fi
fi
if ! command -v kcat >/dev/null 2>&1; then
  if ! { apt-get update -qq && apt-get install -y -qq kcat; } >/dev/null 2>&1; then
    say "kcat could not be installed: apt-get install kcat as root"; missing=1
  fi
fi
exit $missing
