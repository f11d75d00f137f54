#!/usr/bin/env bash
# try_wheel.sh PYTHON WHEEL DIRECTORY: installs the wheel in a fresh virtual environment in the directory, starts a
# broker there, and produces and consumes a record.
set -euo pipefail
python=$1 wheel=$(realpath "$2") directory=$(realpath -m "$3")
rm -rf "$directory"
"$python" -m venv "$directory/environment"
"$directory/environment/bin/pip" install -q --disable-pip-version-check "$wheel"
cd "$directory" # away from a clone, whose package would be found first
kbroker=$directory/environment/bin/kbroker
coproc serve { exec "$kbroker" serve --listen 127.0.0.1:0 --data-dir data 2>errors; }
broker=$serve_PID
trap 'kill $broker 2>/dev/null || true' EXIT
read -r ready <&"${serve[0]}" || { cat errors; exit 1; }
address=${ready##*listening on }
echo hello | "$kbroker" produce greetings -b "$address"
"$kbroker" consume greetings --from-beginning --count 1 -b "$address" | grep -x hello
kill $broker
wait $broker
