#!/bin/sh
# Builds the images of the control plane and of the worker with docker or podman. Pushes nothing.
#
#   CONTAINER_ENGINE  docker or podman (default: the first of them that answers)
#   IMAGES            what their names begin with (default ghcr.io/fulcrum)
#   TAG               their tag (default: the version in pyproject.toml)
#   ROCM              1: the worker for AMD, too (vLLM's image for ROCm is about 25 GB)
#   PYTHON_IMAGE, BUILD_IMAGE, VLLM_IMAGE, ROCM_IMAGE  what they are built on, by digest if that was read (default: the tags in the Dockerfiles)
set -eu
cd "$(dirname "$0")/.."
images=${IMAGES:-ghcr.io/fulcrum}
tag=${TAG:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)}
answers() { command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1; }
engine=${CONTAINER_ENGINE:-}
for name in docker podman; do
    [ -n "$engine" ] || ! answers "$name" || engine=$name
done
if [ -z "$engine" ] || ! answers "$engine"; then
    echo "error: images need a container engine that answers: ${engine:-neither docker nor podman} does not." >&2
    echo "Install Docker or Podman, start it (\`docker info\` or \`podman info\` must succeed) and run make images again." >&2
    exit 1
fi
named() { for name in "$@"; do eval "value=\${$name:-}"; [ -z "$value" ] || printf '%s ' "--build-arg $name=$value"; done; }
step() { echo "[images] $1 ($engine)"; }
step "$images/fulcrum:$tag"
# shellcheck disable=SC2046
"$engine" build $(named PYTHON_IMAGE) --file Dockerfile --tag "$images/fulcrum:$tag" .
step "$images/worker:$tag, on vLLM's image for CUDA (about 10 GB)"
# shellcheck disable=SC2046
"$engine" build $(named BUILD_IMAGE VLLM_IMAGE) --file worker_image/Dockerfile --tag "$images/worker:$tag" .
if [ "${ROCM:-0}" = 1 ]; then
    step "$images/worker-rocm:$tag, on vLLM's image for ROCm"
    # shellcheck disable=SC2046
    "$engine" build $(named BUILD_IMAGE ROCM_IMAGE) --file worker_image/Dockerfile.rocm --tag "$images/worker-rocm:$tag" .
fi
"$engine" run --rm "$images/fulcrum:$tag" fulcrum --version
