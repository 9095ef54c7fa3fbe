#!/bin/sh
# Puts a headless Chromium and axe-core into .venv/browser for the tests of the dashboard and for its screenshots: Debian's package
# `chromium-headless-shell` with the libraries that this machine lacks, without root, and one file of the npm package `axe-core`.
# A chromium-headless-shell, chromium or google-chrome in PATH is taken instead.
set -eu
cd "$(dirname "$0")/.."
venv=$PWD/${VENV:-.venv}
browser=$venv/browser
axe=axe-core@4.10.3
[ -x "$browser/chromium" ] && [ -f "$browser/axe.min.js" ] && exit 0
skip() {
    echo "[install] $1: the dashboard's tests in a browser will be skipped."
    exit 0
}
mkdir -p "$browser"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
apt() {
    apt-get -qq -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@" \
        >"$folder/log" 2>&1
}
if [ ! -x "$browser/chromium" ]; then
    found=$(command -v chromium-headless-shell || command -v chromium || command -v google-chrome || true)
    if [ -n "$found" ]; then
        ln -sf "$found" "$browser/chromium"
    else
        command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no Chromium and no apt-get"
        echo "[install] chromium, headless (about 100 MB)"
        mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
        # apt says what this machine lacks; unpacking needs no root.
        { apt update && apt install --yes --download-only --no-install-recommends chromium-headless-shell fonts-liberation; } || {
            cat "$folder/log"
            skip "Chromium could not be downloaded"
        }
        rm -rf "$browser/root"
        mkdir -p "$browser/root"
        for package in "$folder"/cache/archives/*.deb; do
            dpkg-deb -x "$package" "$browser/root"
        done
        libraries=$(find "$browser/root/usr/lib" -name '*.so*' -exec dirname {} + | sort -u | paste -sd: -)
        cat >"$browser/chromium" <<WRAPPER
#!/bin/sh
root=$browser/root
[ -d /etc/fonts ] || export FONTCONFIG_PATH="\$root/etc/fonts"
export XDG_DATA_HOME="\$root/usr/share" LD_LIBRARY_PATH="$libraries"
exec "\$root/usr/lib/chromium/chromium-headless-shell" "\$@"
WRAPPER
        chmod +x "$browser/chromium"
    fi
fi
if [ ! -f "$browser/axe.min.js" ]; then
    command -v npm >/dev/null || skip "no npm for axe-core"
    (cd "$folder" && npm pack --silent "$axe" >/dev/null 2>&1) || skip "axe-core could not be downloaded"
    tar -xzf "$folder"/axe-core-*.tgz -C "$folder" package/axe.min.js
    mv "$folder/package/axe.min.js" "$browser/axe.min.js"
fi
