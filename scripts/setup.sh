#!/bin/sh
# Makes .venv with the pinned dependencies; a second call with nothing changed does nothing.
# Its Python is $PYTHON, or the newest one here that will do, or one that uv fetches.
# Usage: scripts/setup.sh EXTRAS     (for example: scripts/setup.sh cpu,dev)
set -eu
cd "$(dirname "$0")/.."
extras=$1

fail() {
    echo "setup: $1" >&2
    exit 1
}

# What a Python lacks; nothing when it will do.
lack() {
    "$1" rankline/doctor/interpreter.py 2>/dev/null || echo "it does not start"
}

# Has uv install a Python of its own. uv is the machine's, or comes into a directory of its own by any Python.
fetch_python() {
    uv=$(command -v uv) || {
        directory=$(mktemp -d)
        trap 'rm -rf "$directory"' EXIT
        uv=$directory/bin/uv
        python3 -m venv "$directory" >/dev/null 2>&1 ||
            fail "$none; uv could download one, but it is not installed and no Python here can install it: apt-get install python3-venv"
        error=$("$directory/bin/python" -m pip install --quiet "$uv_pin" 2>&1) ||
            fail "$none, and uv cannot be installed to download one ($(last_line "$error")): $remedy"
    }
    error=$(UV_PYTHON_INSTALL_BIN=0 "$uv" python install --quiet 3.13 2>&1) ||
        fail "$none, and uv cannot download one ($(last_line "$error")): $remedy"
    "$uv" python find --managed-python 3.13
}

last_line() {
    echo "$1" | grep . | tail -n 1 | sed 's/^ *\(cause: \)*//'
}

case $(uname -m) in
x86_64) ;;
aarch64) note="; arm64 is untested, although all packages are available: rankline doctor shows what works" ;;
*) fail "this machine is $(uname -m), but TensorFlow and Triton are built only for x86-64 and arm64" ;;
esac

if [ -e .venv ]; then
    reason=$(lack .venv/bin/python)
    [ -z "$reason" ] || fail "the Python in .venv is unsuitable: $reason; run \`make clean\` to remove .venv, and the next make creates a new one"
    has=$(.venv/bin/python --version)
    [ -z "${PYTHON:-}" ] || [ "$has" = "$("$PYTHON" --version 2>&1)" ] ||
        fail ".venv has $has, but PYTHON=$PYTHON is $("$PYTHON" --version 2>&1): run make clean first, or omit PYTHON"
fi

sum=$(cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
wanted=.venv/.installed-$(echo "$extras" | tr ',' '-')
for stamp in "$wanted"*-"$sum"; do  # an environment with more extras will do
    [ -f "$stamp" ] && exit 0
done
command -v g++ >/dev/null 2>&1 || fail "g++ was not found, but NVTabular compiles a C++ extension (apt-get install g++)"
uv_pin=$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' constraints.txt)

if [ ! -e .venv ]; then
    python=
    reasons=
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.10 python3}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        reason=$(lack "$candidate")
        [ -n "$reason" ] || { python=$candidate && break; }
        reasons="$reasons; $candidate is unsuitable: $reason"
    done
    none="no suitable Python${reasons:+ (${reasons#; })}"
    remedy="set PYTHON=/path/to/python (3.10 to 3.13), or apt-get install python3 python3-venv python3-dev if it provides one"
    if [ -z "$python" ]; then
        [ -z "${PYTHON:-}" ] || fail "$none: $remedy"
        echo "setup: $none; uv is downloading Python 3.13"
        python=$(fetch_python)
    fi
    "$python" -m venv .venv
fi
echo "setup: installing into .venv with $(.venv/bin/python --version) (extras: $extras)${note:-}"
[ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check "$uv_pin"
# uv has a name of its own for pip's folder of wheels, such as a PyTorch without CUDA.
[ -z "${PIP_FIND_LINKS:-}" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$PIP_FIND_LINKS}"
.venv/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt -e ".[$extras]" --group pinned
touch "$wanted-$sum"
