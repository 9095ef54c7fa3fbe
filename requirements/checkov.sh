#!/bin/sh
# Puts checkov, for `make scan`, into an environment of its own: its pins are not ours.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}/checkov
want=$(cksum <requirements/checkov.lock)
[ "$(cat "$venv/.installed" 2>/dev/null || true)" = "$want" ] && exit 0
echo "[install] checkov (about 290 MB)"
"${PYTHON:-python3}" -m venv "$venv"
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install --quiet -r requirements/checkov.lock
echo "$want" >"$venv/.installed"
