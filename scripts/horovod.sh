#!/bin/sh
# Builds Horovod against the TensorFlow in .venv and installs it there; where it works already, it does nothing.
# Horovod's last release stops at TensorFlow 2.15. What keeps it from a newer one is a single file, xla_mpi_ops.cc, which
# includes a header that TensorFlow's wheel lacks (highwayhash/arch_specific.h). Without a GPU it is empty but for its
# includes, so it is left out of the build.
# The wheel is kept outside the checkout, so that the next environment has it in seconds.
# Usage: scripts/horovod.sh [mpi]     (Gloo is always in it and needs nothing of the system; mpi adds MPI)
set -eu
cd "$(dirname "$0")/.."
mpi=${1:-}
PATH=$PWD/.venv/bin:$PATH

fail() {
    echo "horovod: $1" >&2
    exit 1
}

[ -z "$mpi" ] || [ "$mpi" = mpi ] || fail "got the option '$mpi', expected mpi or none"
[ -x .venv/bin/python ] || fail ".venv does not exist; make horovod creates it"
problem() {
    .venv/bin/python -m rankline.launch.horovod_check $mpi 2>&1
}
reason=$(problem) && exit 0

release=$(sed -n 's/^horovod==\([^ ]*\).*/\1/p' constraints.txt)
sources_sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
change=without-xla # part of the cache's name: another build needs another name
built_for=$(.venv/bin/python -c '
import sys, sysconfig
from rankline.launch.horovod_check import tensorflow_version
if tensorflow_version() is None:
    sys.exit(1)
print(f"tensorflow{tensorflow_version()}-{sys.implementation.cache_tag}-{sysconfig.get_platform()}")
') || fail "$reason"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rankline
wheels=$cache/horovod$release-$change-$built_for-gloo$mpi
echo "horovod: $reason"

if [ ! -d "$wheels" ]; then
    command -v g++ >/dev/null 2>&1 || fail "g++ was not found, but Horovod is compiled from C++ (apt-get install g++)"
    command -v make >/dev/null 2>&1 || fail "make was not found, but Horovod's build requires it (apt-get install make)"
    if [ -n "$mpi" ] && ! command -v mpicxx >/dev/null 2>&1; then
        fail "mpicxx was not found (apt-get install libopenmpi-dev openmpi-bin); to build without MPI: make horovod"
    fi
    command -v cmake >/dev/null 2>&1 ||
        .venv/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt cmake ||
        fail "cmake was not found and could not be installed from PyPI (apt-get install cmake)"
    mkdir -p "$cache"
    building=$(mktemp -d "$cache/horovod-building.XXXXXX")
    trap 'rm -rf "$building"' EXIT
    trap 'exit 130' INT TERM
    echo "horovod: building $release for $built_for, which takes minutes the first time"
    # pip's own cache does not ask for which TensorFlow a wheel was built, hence --no-cache-dir. MAKEFLAGS, because those
    # of the make that called us are not for CMake's.
    if [ -n "$mpi" ]; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO
    cores=$(getconf _NPROCESSORS_ONLN)
    export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS=-j"$cores" LDFLAGS=-Wl,-s
    pip() {
        .venv/bin/python -m pip --disable-pip-version-check "$@" --no-cache-dir --no-deps --no-build-isolation
    }
    {
        echo "horovod==$release --hash=sha256:$sources_sha256" >"$building/requirements.txt" &&
            pip download --no-binary horovod --require-hashes -r "$building/requirements.txt" --dest "$building" &&
            tar -xf "$building/horovod-$release.tar.gz" -C "$building" &&
            sed -i /xla_mpi_ops.cc/d "$building/horovod-$release/horovod/tensorflow/CMakeLists.txt" &&
            pip wheel --wheel-dir "$building/wheels" "$building/horovod-$release"
    } >"$cache/horovod.log" 2>&1 || {
        tail -n 15 "$cache/horovod.log" >&2
        fail "the build failed; the full log is $cache/horovod.log"
    }
    mv -T "$building/wheels" "$wheels" 2>/dev/null || [ -d "$wheels" ] || fail "$wheels could not be written"
fi

.venv/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt --reinstall-package horovod "$wheels"/*.whl
reason=$(problem) || fail "installing the built wheel did not help: $reason; remove $wheels to rebuild it"
echo "horovod: $release is installed, from $wheels"
