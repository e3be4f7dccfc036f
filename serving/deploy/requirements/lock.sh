#!/bin/sh
# Renews requirements-*.txt, what the images install without looking for more, from requirements-*.in, in the versions of
# constraints.txt. `make setup` first.
set -eu
cd "$(dirname "$0")"
# What MLflow's package asks for and its server never imports.
client_only="docker fonttools matplotlib pillow pyarrow scikit-learn scipy skops
    contourpy cycler joblib kiwisolver narwhals pyparsing threadpoolctl"
for name in bench engines mlflow; do
    # shellcheck disable=SC2046  # each word is an option
    ../../../.venv/bin/uv pip compile --no-config --quiet --constraint ../../../constraints.txt \
        --python-version 3.13 --python-platform x86_64-manylinux_2_28 --only-binary :all: --no-annotate --no-header --generate-hashes \
        $([ $name != engines ] || echo --no-deps) \
        $([ $name != mlflow ] || for package in $client_only; do echo --no-emit-package "$package"; done) \
        --output-file "requirements-$name.txt" "requirements-$name.in"
done
