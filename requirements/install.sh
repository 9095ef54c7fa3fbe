#!/bin/sh
# install.sh [engine] [tools]: makes .venv and installs Fulcrum's control plane from its lock file; beside it, where they are named,
# the CPU engine (vLLM, NIXL, torch, the demo model) and the tools of tests and checks. Does nothing for a part that is there
# already: each part has a stamp with the checksum of what was asked for, written when the part is whole.
#
#   PYTHON            the interpreter to start from (default python3; 3.11 or newer)
#   TORCH_INDEX_URL   an index of CPU builds of torch, for machines where pip's default brings the CUDA build
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
torch=torch==2.13.0

step() { echo "[install] $1"; }
pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip --quiet "$@" 2>"$venv/pip.log" || { cat "$venv/pip.log" >&2; return 1; }; }
# Nothing is compiled to bytecode one file after the other: Python does it at the first import, and bytecode() on all cores.
put() { pip install --no-deps --no-compile "$@"; }
# Our own files, too: the many processes of a local cluster may not be allowed to write any (PYTHONDONTWRITEBYTECODE).
bytecode() { "$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" operator worker_image >/dev/null 2>&1 || true; }

# part NAME FILE...: runs put_NAME unless the stamp says that these files have been installed.
part() {
    name=$1
    shift
    want=$(cat requirements/install.sh "$@" | cksum)
    stamp=$venv/.installed-$name
    [ "$(cat "$stamp" 2>/dev/null || true)" = "$want" ] && return 0
    rm -f "$stamp"
    began=$(date +%s)
    "put_$name"
    echo "$want" >"$stamp"
    step "$name done: $(($(date +%s) - began)) s, $(du -sm "$venv" | cut -f1) MB in $venv"
}

put_control() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: Fulcrum needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1). Set PYTHON=/path/to/python3.11." >&2
        exit 1
    }
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
        echo "error: '$python -m venv' failed; on Debian and Ubuntu install python3-venv." >&2
        exit 1
    }
    pip install 'pip>=25,<27'
    step "the control plane: operator, gateway, simulator, local Kubernetes (530 MB on disk)"
    put -r requirements/fulcrum.lock
    put --no-build-isolation --editable . --editable ./operator/fulcrum_local
}

put_engine() {
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
        put $index "$torch"
    fi
    step "vLLM, NIXL and the demo model (about 700 MB)"
    put -r requirements/engine-cpu.lock
    "$venv/bin/python" -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' || {
        echo "error: $venv holds a CUDA build of torch. Remove $venv, set TORCH_INDEX_URL to an index of CPU wheels, run make again." >&2
        exit 1
    }
    bytecode
}

put_tools() {
    step "tools of tests and checks"
    put -r requirements/tools.lock
    bytecode
}

part control requirements/fulcrum.lock pyproject.toml operator/fulcrum_local/pyproject.toml
for name in "$@"; do
    case $name in
    engine) part engine requirements/engine-cpu.lock ;;
    tools) part tools requirements/tools.lock ;;
    *)
        echo "error: there is no part '$name'; there are engine and tools" >&2
        exit 2
        ;;
    esac
done
