# Control plane: operator, gateway and the `fulcrum` command. The worker has its own image (worker_image/Dockerfile).
# A release may name it by digest: PYTHON_IMAGE=python@sha256:... make images
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# The compiler is for what runs for every request, which is compiled into the wheel (hatch_build.py).
RUN apt-get update \
    && apt-get install --no-install-recommends --yes gcc=4:12.2.0-3 libc6-dev=2.36-9+deb12u* \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/fulcrum
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY requirements/image.lock requirements/image.lock
COPY crds crds
COPY manifests manifests
COPY examples/simulate.yaml examples/simulate.yaml
COPY operator/fulcrum operator/fulcrum
COPY worker_image/fulcrum_worker worker_image/fulcrum_worker
# The lock names what was tested, by version and by hash.
RUN /opt/fulcrum/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement requirements/image.lock \
    && FULCRUM_COMPILE=1 /opt/fulcrum/bin/pip install --no-cache-dir --no-deps .

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/fulcrum/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /opt/fulcrum /opt/fulcrum
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
ENTRYPOINT []
CMD ["fulcrum", "--help"]
