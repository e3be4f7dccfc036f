#!/bin/sh
# Checks what a release says of itself, and builds it into build/release: wheel, source, SBOM, checksums.
# Usage: scripts/release.sh     (`make release`)
set -eu
cd "$(dirname "$0")/.."
bin=.venv/bin

fail() {
    echo "release: $1" >&2
    exit 1
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
grep -q "^version: $version$" CITATION.cff || fail "CITATION.cff and pyproject.toml ($version) have different versions"
grep -qE "^## $version – [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || fail "CHANGELOG.md has no '## $version – DATE'"
[ -z "$(git status --porcelain)" ] || fail "there are uncommitted changes: see git status"

rm -rf build/release
$bin/uv build --quiet --out-dir build/release
$bin/twine check --strict build/release/*.whl build/release/*.tar.gz
$bin/cyclonedx-py requirements constraints.txt --output-file build/release/sbom.cdx.json
$bin/pytest -q tests/e2e/deployment/test_installed_wheel.py
(cd build/release && sha256sum -- *.whl *.tar.gz *.json >SHA256SUMS)
ls -l build/release
