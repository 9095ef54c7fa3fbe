# Three commands do everything in a fresh clone: `make try`, `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
PYTEST := $(BIN)/python -m pytest
SOURCES := operator worker_image tests benchmarks charts
# Two lanes of clusters have up to five engines of the tiny model (1.6 GB each) and four of the real one (up to 2.8 GB);
# with less than 20 GB of memory there is one lane.
LANES ?= $(shell awk '/^MemTotal:/ {lanes = $$2 < 20000000 ? 0 : 2} END {print lanes + 0}' /proc/meminfo 2>/dev/null || echo 0)
# Tests of single engines that compare no durations, so that they can run beside those of clusters.
BESIDE := $(addprefix tests/worker_image/,test_two_engines.py test_engine_failures.py test_kv_check.py test_other_kinds.py \
  test_roles_at_start.py test_pooling.py)
# Files with tests of engines that run alone: those that compare durations. To collect all of tests/ takes a slow machine a minute.
ALONE = $(filter-out tests/e2e/% $(BESIDE),$(shell grep -rl 'mark\.engine' tests --include='test_*.py'))

.PHONY: help try install engine demo test check lint types contracts dockerfiles generated documentation format unit integration scan e2e compare bench generate lock docs images release clean

help:  ## Show this list
	@sed -n 's/^\([a-z0-9]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

try:  ## The first answer: install the control plane alone, and compare policies on a load that moves, simulated
	@sh requirements/install.sh
	@$(BIN)/fulcrum simulate --demo

engine:
	@sh requirements/install.sh engine

install:  ## Make .venv and install everything from the lock files
	@sh requirements/install.sh engine tools
	@sh requirements/helm.sh
	@sh requirements/promtool.sh
	@sh requirements/chromium.sh

demo: engine  ## Local cluster with real vLLM workers: ask, replay, flip, report (CPU=350m: what each worker may use)
	@$(BIN)/python benchmarks/demo.py $(if $(CPU),--cpu $(CPU))

test: install  ## Every check, and the seconds of each stage
	@set -e; table=; trap 'printf "$$table"' EXIT; for stage in check unit integration e2e; do \
	  began=$$(date +%s); ended=passed; $(MAKE) --no-print-directory $$stage || ended=failed; \
	  table="$$table[test] $$(printf "%-12s %5d s  %s" $$stage $$(($$(date +%s) - began)) $$ended)\n"; \
	  [ $$ended = passed ]; done

check: install  ## Format, lint, types, import contracts, Dockerfiles, generated files, documentation
	@$(MAKE) --no-print-directory --jobs=2 types documentation contracts generated dockerfiles lint

lint:
	@echo "[check] format and lint" && $(BIN)/ruff format --check --quiet $(SOURCES) && $(BIN)/ruff check --quiet $(SOURCES)

types:
	@echo "[check] types" && $(BIN)/mypy --no-error-summary operator/fulcrum operator/fulcrum_local worker_image/fulcrum_worker benchmarks/contests

contracts:
	@echo "[check] import contracts" && $(BIN)/lint-imports --no-logo > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

dockerfiles:
	@echo "[check] Dockerfiles" && $(BIN)/hadolint Dockerfile worker_image/Dockerfile worker_image/Dockerfile.rocm

generated:
	@echo "[check] generated files" && $(BIN)/fulcrum crd --check crds/fulcrum.dev_inferenceclusters.yaml && $(BIN)/fulcrum crd --kind InferenceScale --check crds/fulcrum.dev_inferencescales.yaml && $(BIN)/fulcrum crd --kind InferenceGateway --check crds/fulcrum.dev_inferencegateways.yaml && $(BIN)/python charts/generate.py --check

documentation:
	@echo "[check] documentation" && sh requirements/tool.sh mkdocs && { NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs/bin/mkdocs build --strict > $(VENV)/mkdocs.log 2>&1 || { cat $(VENV)/mkdocs.log; exit 1; }; }

unit: install  ## Tests that start no process of ours
	$(PYTEST) -m "not integration and not engine" -n 2 --quiet

integration: install  ## Tests with API server, kubelet, operator and gateway processes
	$(PYTEST) -m "integration and not engine" -n 3 --dist loadfile --no-loadscope-reorder --quiet

scan: install  ## checkov on charts, manifests and Dockerfiles (installs 290 MB beside the rest)
	@sh requirements/tool.sh checkov
	$(PYTEST) tests/charts/test_checkov.py --quiet

e2e: install  ## Tests with real vLLM engines
	$(PYTEST) tests/e2e $(BESIDE) -m "engine and not compare" -n $(LANES) --no-loadscope-reorder --durations=15
	$(PYTEST) $(ALONE) -m "engine and not compare" --durations=15

compare: install  ## Auto against fixed ratios, rejection against none, FP8 KV against none, on real engines; wants a quiet machine
	$(PYTEST) -m compare -s

bench: install  ## The benchmarks that back a claim (the last two start real engines)
	$(BIN)/python benchmarks/forecast.py
	$(BIN)/python benchmarks/plan_played.py
	$(BIN)/python benchmarks/waiting.py
	$(BIN)/python benchmarks/splits.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/scaling.py --hours 1
	$(BIN)/python benchmarks/capacity.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/rehearsing.py
	$(BIN)/python benchmarks/classes.py
	$(BIN)/python benchmarks/gateway.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/flip.py
	$(BIN)/python benchmarks/overload.py
	$(BIN)/python benchmarks/authors.py

generate: install  ## Rewrite generated files
	$(BIN)/fulcrum crd > crds/fulcrum.dev_inferenceclusters.yaml
	$(BIN)/fulcrum crd --kind InferenceScale > crds/fulcrum.dev_inferencescales.yaml
	$(BIN)/fulcrum crd --kind InferenceGateway > crds/fulcrum.dev_inferencegateways.yaml
	$(BIN)/fulcrum crd --docs > docs/reference/inferencecluster.md
	$(BIN)/fulcrum crd --docs --kind InferenceScale > docs/reference/inferencescale.md
	$(BIN)/fulcrum crd --docs --kind InferenceGateway > docs/reference/inferencegateway.md
	$(BIN)/fulcrum gateway --openapi > docs/reference/openapi.json
	$(BIN)/python charts/generate.py

format: install  ## Format the code
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

vllm-next: install  ## What is known of vLLM by its source, held against its newest release (340 MB are downloaded)
	$(BIN)/python requirements/vllm_next.py build/vllm-next
	FULCRUM_VLLM_SOURCE=build/vllm-next $(PYTEST) -m vllm_facts --quiet

lock:  ## Resolve the lock files again (needs uv)
	sh requirements/lock.sh

docs:  ## The documentation as a site, in build/docs (installs 160 MB beside the rest)
	@sh requirements/tool.sh mkdocs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs/bin/mkdocs build --strict
	@echo "[docs] build/docs/index.html"

images:  ## Images of the control plane and the worker, with docker or podman (IMAGES, TAG; ROCM=1: for AMD, too)
	@sh requirements/images.sh

release: install  ## Wheels, sdists, charts, bill of materials and checksums, in dist/
	@sh requirements/release.sh

clean:  ## Remove everything that make made
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
