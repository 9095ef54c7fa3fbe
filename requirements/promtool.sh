#!/bin/sh
# Puts promtool into .venv/bin for the tests of the alerts, out of Debian's package `prometheus`, without root. One in PATH is taken instead.
set -eu
cd "$(dirname "$0")/.."
venv=$PWD/${VENV:-.venv}
[ -x "$venv/bin/promtool" ] && exit 0
if found=$(command -v promtool); then
    ln -s "$found" "$venv/bin/promtool"
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "[install] no promtool and no apt-get: the tests of the alerts will be skipped. Install Prometheus to run them."
    exit 0
}
echo "[install] promtool (about 40 MB)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
apt() { apt-get -qq -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User= "$@" >"$folder/log" 2>&1; }
cd "$folder"
{ apt update && apt download prometheus && dpkg-deb -x prometheus_*.deb "$folder/root"; } || {
    cat "$folder/log"
    echo "[install] promtool could not be downloaded: the tests of the alerts will be skipped."
    exit 0
}
mv "$folder/root/usr/bin/promtool" "$venv/bin/promtool"
