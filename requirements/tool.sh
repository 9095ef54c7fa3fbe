#!/bin/sh
# tool.sh NAME: puts a tool whose pins are not ours into an environment of its own, .venv/NAME, out of requirements/NAME.lock.
set -eu
cd "$(dirname "$0")/.."
name=$1
venv=${VENV:-.venv}/$name
want=$(cksum <"requirements/$name.lock")
[ "$(cat "$venv/.installed" 2>/dev/null || true)" = "$want" ] && exit 0
echo "[install] $name"
"${PYTHON:-python3}" -m venv "$venv"
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install --quiet -r "requirements/$name.lock"
echo "$want" >"$venv/.installed"
