#!/bin/sh
# Runs the tests, as many at a time as there are cores (4 at most: each process takes some gigabytes).
# Usage: scripts/test.sh [PYTEST'S ARGUMENTS]
cd "$(dirname "$0")/.." && exec .venv/bin/pytest -n logical --maxprocesses 4 --dist loadfile "$@"
