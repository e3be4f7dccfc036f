#!/bin/sh
# Runs the tests, two more at a time than there are cores, since many wait for servers; 4 at most, as each process takes
# some gigabytes. A file is run by one process, so that it starts its servers once; in which order is said in
# tests/conftest.py.
# Usage: scripts/test.sh [PYTEST'S ARGUMENTS]
cd "$(dirname "$0")/.." || exit
# Tests start some hundred processes, most of which import TensorFlow: with its bytecode that takes half the time.
unset PYTHONDONTWRITEBYTECODE
# OpenMP's threads, which PyTorch computes with, wait for each other by spinning: where more processes run than there are
# cores they spin away the others' time, half of what such a test takes.
export OMP_WAIT_POLICY=passive
exec .venv/bin/pytest -n $(($(getconf _NPROCESSORS_ONLN) + 2)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
