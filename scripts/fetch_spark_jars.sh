#!/usr/bin/env bash
# Fetches the jars of Spark's Kafka source and sink into .tools/spark, each by its exact coordinates: resolving them
# with their dependencies asks Maven repositories that are not reachable everywhere. What else the source needs ships
# inside pyspark. The token provider of this Spark line is not published; 4.0.0's is only used with SASL.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .tools/spark
for artifact in \
    org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3 \
    org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 \
    org.apache.kafka:kafka-clients:3.9.2 \
    org.apache.commons:commons-pool2:2.12.1; do
  IFS=: read -r _ name version <<<"$artifact"
  [ -s ".tools/spark/$name-$version.jar" ] && continue
  if ! mvn -q -B dependency:copy -Dartifact="$artifact" -DoutputDirectory="$PWD/.tools/spark"; then
    echo "fetch_spark_jars: $artifact could not be fetched: Maven and a Maven repository are needed" >&2
    exit 1
  fi
done
