#!/bin/sh
# Rewrites the lock files of .venv from pyproject.toml, that of operator/fulcrum_local, editable.in and engine-cpu.in. Needs uv (pip install uv). All come from one
# resolution, because install.sh puts them into one environment. Each pin carries the hashes of its files, and pip takes no other
# file. torch has none and stands in install.sh: its files differ from index to index.
set -eu
cd "$(dirname "$0")/.."
all=$(mktemp)
trap 'rm -f "$all"' EXIT
compile() {
    uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-index-url --no-header --no-annotate \
        --no-emit-package fulcrum-operator --no-emit-package fulcrum-operator-local --generate-hashes --override requirements/engine-cpu.overrides "$@"
}
control="--extra local --extra sim pyproject.toml requirements/editable.in"
tools="--extra dev pyproject.toml"
engine=requirements/engine-cpu.in
# shellcheck disable=SC2086
{
    compile $control --extra dev "$engine" -o "$all"
    compile $control -c "$all" -o requirements/fulcrum.lock
    compile $tools -c "$all" -o requirements/tools.lock
    compile "$engine" -c "$all" -o requirements/engine-cpu.lock
    # What the image of the control plane holds beside Fulcrum itself.
    compile pyproject.toml -c "$all" -o requirements/image.lock
}
