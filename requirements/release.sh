#!/bin/sh
# Makes dist/: wheels and sdists of both distributions (fulcrum-operator, and fulcrum-operator-local for its extra `local`), charts, a bill
# of materials (CycloneDX) of what the wheel of fulcrum-operator brings along alone, as in its image, and SHA256SUMS of all of them.
# The wheels are those without compiled modules, for every platform; images compile their own.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH FULCRUM_COMPILE=0
[ -x "$venv/bin/helm" ] || { echo "error: helm is needed to pack the charts; install it and run make again" >&2; exit 1; }
step() { echo "[release] $1"; }
rm -rf dist
mkdir dist
step "wheels and sdists"
python=$(cd "$venv/bin" && pwd)/python
"$python" -m hatchling build -d dist >/dev/null
(cd operator/fulcrum_local && "$python" -m hatchling build -d ../../dist >/dev/null)
step "charts"
for chart in charts/*/Chart.yaml; do
    "$venv/bin/helm" package "$(dirname "$chart")" -d dist >/dev/null
done
step "bill of materials, of the wheel installed alone"
sh requirements/tool.sh cyclonedx
alone=$(mktemp -d)
trap 'rm -rf "$alone"' EXIT
"$venv/bin/python" -m venv "$alone"
PIP_DISABLE_PIP_VERSION_CHECK=1 "$alone/bin/pip" install --quiet --no-deps --require-hashes -r requirements/image.lock
PIP_DISABLE_PIP_VERSION_CHECK=1 "$alone/bin/pip" install --quiet --no-deps dist/fulcrum_operator-[0-9]*.whl
"$alone/bin/pip" check >/dev/null
"$alone/bin/fulcrum" --version
"$alone/bin/pip" uninstall --quiet --yes pip setuptools >/dev/null 2>&1 || true
"$venv/cyclonedx/bin/cyclonedx-py" environment "$alone" --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json
step "checksums"
(cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
step "not signed: the release workflow signs what it builds, with its own identity; no key is kept"
