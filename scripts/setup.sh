#!/bin/sh
# Makes .venv with the pinned dependencies; a second call with nothing changed does nothing.
# Usage: scripts/setup.sh EXTRAS     (for example: scripts/setup.sh cpu,dev)
set -eu
cd "$(dirname "$0")/.."
extras=$1

sum=$(cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
wanted=.venv/.installed-$(echo "$extras" | tr ',' '-')
for stamp in "$wanted"*-"$sum"; do  # an environment with more extras will do
    [ -f "$stamp" ] && exit 0
done

fail() {
    echo "setup: $1" >&2
    exit 1
}

python=
reasons=
for candidate in ${PYTHON:-python3.11 python3.10 python3}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    reason=$("$candidate" rankline/interpreter.py 2>/dev/null) || reason="it does not start"
    if [ -z "$reason" ]; then
        python=$candidate
        break
    fi
    reasons="$reasons; $candidate will not do: $reason"
done
[ -n "$python" ] || fail "no suitable Python: ${reasons#; }${reasons:+; }set PYTHON=/path/to/python3.11 to choose another, or apt-get install python3.11 python3.11-venv python3.11-dev"
command -v g++ >/dev/null 2>&1 || fail "g++ was not found, and NVTabular compiles a C++ extension (apt-get install g++)"

echo "setup: installing into .venv with $("$python" --version) (extras: $extras)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
uv=$(grep '^uv==' constraints.txt)
[ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check "$uv"
# uv has a name of its own for pip's folder of wheels, such as a PyTorch without CUDA.
[ -z "${PIP_FIND_LINKS:-}" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$PIP_FIND_LINKS}"
.venv/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt -e ".[$extras]"
touch "$wanted-$sum"
