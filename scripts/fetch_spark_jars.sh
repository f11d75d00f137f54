#!/usr/bin/env bash
# Fetches the jars of Spark's Kafka source and sink into .tools/spark, each by its exact coordinates: resolving them
# with their dependencies asks Maven repositories that are not reachable everywhere. What else the source needs ships
# inside pyspark, whose version they have; where a repository lacks one in it, the newest earlier one of its line.
set -eu
cd "$(dirname "$0")/.."
folder=.tools/spark
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
IFS=: read -r _ source spark <<<"$("$python" -c 'import kbroker.pipeline as p; print(p.kafka_package())')"
[ -n "$spark" ] || { echo "fetch_spark_jars: no PySpark: make build" >&2; exit 1; }
scala=${source##*_}
done_mark=$folder/.for-$spark
[ -e "$done_mark" ] && exit 0
mkdir -p "$folder"

# fetch GROUP:NAME VERSION...: the first version that there is; jars of other versions are removed.
fetch() {
  local artifact=$1 name=${1#*:} version
  shift
  for version in "$@"; do
    if [ -s "$folder/$name-$version.jar" ] ||
      mvn -q -B dependency:copy -Dartifact="$artifact:$version" -DoutputDirectory="$PWD/$folder" >/dev/null 2>&1; then
      find "$folder" -name "$name-*.jar" ! -name "$name-$version.jar" -delete
      [ "$version" = "$1" ] || echo "fetch_spark_jars: $name $version is taken: there is no $1"
      return
    fi
  done
  echo "fetch_spark_jars: $artifact:$1 could not be fetched: Maven and a Maven repository are needed" >&2
  exit 1
}

versions=()
for ((patch = ${spark##*.}; patch >= 0; patch--)); do versions+=("${spark%.*}.$patch"); done
fetch "org.apache.spark:$source" "${versions[@]}"
fetch "org.apache.spark:spark-token-provider-kafka-0-10_$scala" "${versions[@]}" # used with SASL only
fetch org.apache.kafka:kafka-clients 3.9.2
fetch org.apache.commons:commons-pool2 2.12.1
touch "$done_mark"
