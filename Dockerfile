# Control plane: operator, gateway and the `fulcrum` command. The worker has its own image (worker_image/Dockerfile).
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
# The compiler is for what runs for every request, which is compiled into the wheel (hatch_build.py).
RUN apt-get update \
    && apt-get install --no-install-recommends --yes gcc=4:12.2.0-3 libc6-dev=2.36-9+deb12u* \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/fulcrum
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY requirements/fulcrum.lock requirements/fulcrum.lock
COPY crds crds
COPY manifests manifests
COPY examples/simulate.yaml examples/simulate.yaml
COPY operator operator
COPY worker_image/fulcrum_worker worker_image/fulcrum_worker
# The lock names what was tested; of it, only what the control plane imports is installed.
RUN FULCRUM_COMPILE=1 /opt/fulcrum/bin/pip install --no-cache-dir --constraint requirements/fulcrum.lock .

FROM python:3.11.14-slim-bookworm
ENV PATH=/opt/fulcrum/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /opt/fulcrum /opt/fulcrum
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
ENTRYPOINT []
CMD ["fulcrum", "--help"]
