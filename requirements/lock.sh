#!/bin/sh
# Rewrites both lock files from pyproject.toml and engine-cpu.in. Needs uv (pip install uv). Both come from one
# resolution, because `make install` puts them into one environment.
set -eu
cd "$(dirname "$0")/.."
all=$(mktemp)
trap 'rm -f "$all"' EXIT
compile() {
    uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-index-url --no-header --no-annotate \
        --override requirements/engine-cpu.overrides "$@"
}
extras="--extra local --extra sim --extra dev"
compile $extras pyproject.toml requirements/engine-cpu.in -o "$all"
compile $extras -c "$all" pyproject.toml -o requirements/fulcrum.lock
compile -c "$all" requirements/engine-cpu.in -o requirements/engine-cpu.lock
