#!/usr/bin/env bash
# Builds what the end-to-end benchmarks drive into .tools/bin: librdkafka's rdkafka_performance (from the sources inside
# the rdkafka-sys crate) and the C programs of bench/e2e.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
build_programs() {
  cc -O2 -o .tools/bin/wire_load bench/e2e/wire_load.c
  cc -O2 -o .tools/bin/free_broker bench/e2e/free_broker.c -lpthread
  cc -O2 -o .tools/bin/store_link bench/e2e/store_link.c -lpthread
  cc -O2 -o .tools/bin/latency_floor bench/e2e/latency_floor.c -lpthread
  for program in paced_latency paced_load; do
    cc -O2 -I.tools/librdkafka -o ".tools/bin/$program" "bench/e2e/$program.c" .tools/librdkafka/librdkafka.a \
      -lm -lz -lpthread -ldl -lrt
  done
}
if [ -x .tools/bin/rdkafka_performance ]; then
  build_programs
  exit 0
fi
mkdir -p .tools/bin .tools/librdkafka
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && cargo init -q --name fetch . && cargo add -q rdkafka-sys@4.10.0 && cargo fetch -q)
source_dir=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -maxdepth 2 -type d -name 'rdkafka-sys-4.10.0*' | head -1)/librdkafka
cp -r "$source_dir/." "$work/librdkafka"
cd "$work/librdkafka"
./configure --disable-sasl --disable-ssl --disable-curl --disable-syslog >/dev/null
make -C src -j2 librdkafka.a >/dev/null
cp src/librdkafka.a src/rdkafka.h "$root/.tools/librdkafka/"
make -C examples rdkafka_performance >/dev/null
cp examples/rdkafka_performance "$root/.tools/bin/"
cd "$root"
build_programs
