#!/bin/sh
# Renews requirements*.txt, what the images install, from requirements*.in, in the versions of constraints.txt but for
# NumPy, of which requirements.in says why. `make setup` first.
set -eu
cd "$(dirname "$0")"
for name in requirements requirements-mlflow; do
    grep -v '^numpy==' ../../constraints.txt | ../../.venv/bin/uv pip compile --no-config --quiet --constraint /dev/stdin \
        --python-version 3.12 --python-platform x86_64-manylinux_2_28 --only-binary :all: \
        --no-annotate --no-header --generate-hashes --output-file "$name.txt" "$name.in"
done
