#!/bin/sh
# Runs the tests, as many at a time as there are cores (4 at most: each process takes some gigabytes).
# A file is run by one process, so that it starts its servers once. The longest files are in the folders that come first.
# Usage: scripts/test.sh [PYTEST'S ARGUMENTS]
# They start some hundred processes, most of which import TensorFlow: with its bytecode that takes half the time.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "$0")/.." && exec .venv/bin/pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
