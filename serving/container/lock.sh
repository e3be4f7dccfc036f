#!/bin/sh
# Renews requirements*.txt, what the images install, from requirements*.in. `make setup` first.
set -eu
cd "$(dirname "$0")"
for name in requirements requirements-mlflow; do
    ../../.venv/bin/uv pip compile --quiet --upgrade --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
        --only-binary :all: --no-annotate --no-header --output-file "$name.txt" "$name.in"
done
