#!/bin/sh
# Builds the images of the control plane and of the worker with docker or podman. Pushes nothing.
#
#   CONTAINER_ENGINE  docker or podman (default: the first of them that answers)
#   IMAGES            what their names begin with (default ghcr.io/fulcrum)
#   TAG               their tag (default: the version in pyproject.toml)
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
step() { echo "[images] $1 ($engine)"; }
step "$images/fulcrum:$tag"
"$engine" build --file Dockerfile --tag "$images/fulcrum:$tag" .
step "$images/worker:$tag, on vLLM's image for CUDA (about 10 GB)"
"$engine" build --file worker_image/Dockerfile --tag "$images/worker:$tag" .
"$engine" run --rm "$images/fulcrum:$tag" fulcrum --version
