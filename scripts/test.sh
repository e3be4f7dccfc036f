#!/bin/sh
# Runs the tests: all that do not mind company at once, as many as there are cores, then those that measure time.
# Usage: scripts/test.sh [PYTEST'S ARGUMENTS]
set -u
cd "$(dirname "$0")/.."
NO_TESTS=5 # pytest's word for it: the arguments chose none of this kind

.venv/bin/pytest -n logical --maxprocesses 4 --dist loadfile -m "not alone" "$@"
together=$?
.venv/bin/pytest -m alone "$@"
alone=$?
[ $together -eq $NO_TESTS ] && exit $alone
[ $alone -eq $NO_TESTS ] && exit $together
[ $together -eq 0 ] && exit $alone
exit $together
