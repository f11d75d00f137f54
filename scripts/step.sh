#!/usr/bin/env bash
# step.sh LABEL COMMAND...: runs the command, and prints the label and the seconds it took. What the command prints is
# shown only if it fails.
set -u
label=$1; shift
began=${EPOCHREALTIME/[.,]/}
output=$(mktemp)
trap 'rm -f "$output"' EXIT
printf 'kbroker: %s ...' "$label" >&2
"$@" >"$output" 2>&1 </dev/null
code=$?
ended=${EPOCHREALTIME/[.,]/}
if [ $code -ne 0 ]; then
  printf ' failed (exit code %d):\n' $code >&2
  tail -n 40 "$output" >&2
  exit $code
fi
tenths=$(((ended - began) / 100000))
printf ' %d.%d s\n' $((tenths / 10)) $((tenths % 10)) >&2
