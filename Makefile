# Every target sets itself up: `make demo` and `make test` work on a fresh machine with Python 3.11+, pip and git.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
export TRAINYARD_HOME ?= $(CURDIR)/.trainyard
export HF_HUB_OFFLINE ?= 1
export DO_NOT_TRACK ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
# Where it is set, each of the hundreds of processes of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
# Tests that have a target of their own.
APART := slow and not faults and not gpu and not network and not backends and not chains and not browser

.PHONY: sbom audit help setup check check-web web-types test test-fast test-integration test-all test-backends test-chains test-browser test-gpu bench-gpu bench-latent bench-rl gpu-wheels demo demo-nightly up down bench faults docs reference web clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the pinned dependencies

# torch goes first and alone: a later resolution would otherwise pull another build of it.
$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Trainyard needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11.") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned dependencies into $(VENV) (about 2 GB; a few minutes)" >&2
	@$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" 2> >(grep -v '^WARNING: Location' >&2)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' 2> >(grep -v '^WARNING: Location' >&2)
	@$(BIN)/python -m pip check
	@$(BIN)/python -m tools.docs >/dev/null
	@touch $@

check: setup ## Style, types, import arrows and budgets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.docs types
	$(BIN)/mypy trainyard flows nodes tasks
	$(BIN)/lint-imports
	$(PYTEST) -q -n 2 -m 'not slow and not network' tests/architecture
	@if [ -d web/node_modules ]; then $(MAKE) --no-print-directory check-web; else echo "web/node_modules is not here: the dashboard's sources are not checked (make check-web)"; fi

# The types come from the API of this tree, so that a page and the API that disagree do not pass.
check-web: setup web-types ## Types, lint, style and unit tests of the dashboard's sources (needs node and npm)
	cd web && npm run --silent check

web-types: setup
	$(BIN)/python -m tools.docs.openapi build/openapi.json
	cd web && { test -d node_modules && test node_modules -nt package-lock.json || npm ci --no-audit --no-fund; } && npm run --silent types

test: setup ## The daily tests but those of `make check` (6 to 13 minutes on two cores, offline)
	$(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder $(foreach folder,architecture browser flows gpu integration,--ignore=tests/$(folder)) -m 'not integration and not $(APART)'

test-integration: setup ## What starts servers, flows or many processes, and a short form of every benchmark (about twelve minutes)
	@$(BIN)/python -m pip install --quiet --requirement benchmarks/requirements.txt --constraint constraints.txt 2> >(grep -v '^WARNING: Location' >&2)
	$(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder -m 'integration and not $(APART)' tests/flows $$(grep -rl --include='test_*.py' 'mark\.integration' tests/attacks tests/parity tests/unit) tests/integration

test-fast: setup ## The unit tests without torch, servers and child processes (a minute on two cores)
	$(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder --fast -m 'not slow and not faults and not network' tests/unit

test-chains: setup ## Install the wheel elsewhere, and run all templates and a night on it (three to five minutes)
	$(PYTEST) -q -m chains

test-browser: setup ## The dashboard in Chromium, over a running stack (about six minutes)
	$(PYTEST) -q -n 2 --dist loadgroup --no-loadscope-reorder -m 'browser and not slow and not network' tests/browser

test-all: setup ## Every test that can run here, with coverage and mutation bars
	$(PYTEST) -q -m 'timed and not gpu and not network'
	$(PYTEST) -q -n 2 --dist loadfile -m 'not timed and not gpu and not network and not backends' --hypothesis-profile=busy --cov=trainyard.spec --cov=trainyard.stores --cov=trainyard.data --cov-report=term-missing:skip-covered --cov-fail-under=95
	$(BIN)/python -m tools.mutation

# Neither needs .venv: PYTHON is an interpreter with torch for the card (on a bare machine: after `make gpu-wheels` elsewhere).
test-gpu: ## The tests of a CUDA card, with PYTHON as it is (PART=words for pytest -k; DEVICE=cpu rehearses them)
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) TRAINYARD_GPU_TESTS_DEVICE=$(DEVICE) $(PYTHON) -m pytest -q tests/gpu -p no:cacheprovider $(if $(PART),-k '$(PART)')

bench-gpu: ## The measurements on a CUDA card, with PYTHON as it is (ONLY=speed, stall, memory, dsa_decode or latent; DEVICE=cpu rehearses them)
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) TRAINYARD_GPU_TESTS_DEVICE=$(DEVICE) $(PYTHON) -m benchmarks.gpu $(ONLY)

bench-latent: setup ## Do the techniques of latent reasoning learn? (about two hours of CPU time)
	$(BIN)/python -m benchmarks.latent all

bench-rl: setup ## Does reinforcement learning reach what is reachable on toys? (about twenty minutes of CPU time)
	$(BIN)/python -m benchmarks.rl all

gpu-wheels: ## Download what a CUDA machine without network needs for both into .gpu-wheels
	benchmarks/gpu/wheels.sh

test-backends: setup ## Install every trainer's environment, train on each, write docs/backends.md (ONLY=name for a part)
	@$(BIN)/trainyard backends install
	$(BIN)/python -m tools.backends_report $(if $(ONLY),-k $(ONLY))

demo: setup ## Documents in, a served adapter out, through a real Prefect server and worker
	@$(BIN)/trainyard demo

demo-nightly: setup ## A whole night on the sample streams: graph, corpora, adapters, report
	@$(BIN)/trainyard corpus engineering --repo . >/dev/null
	@$(BIN)/trainyard corpus apprenticeship add --file examples/night/corpora/corrections.jsonl >/dev/null
	@$(BIN)/trainyard nightly run --preset nightly-demo

up: setup ## Start the Prefect server, the worker and the model server
	@$(BIN)/trainyard up

down: setup ## End what `up` started
	@$(BIN)/trainyard down

bench: setup ## Side-by-side measurements (ONLY=name for one)
	@$(BIN)/python -m pip install --quiet --requirement benchmarks/requirements.txt --constraint constraints.txt 2> >(grep -v '^WARNING: Location' >&2)
	@$(BIN)/python -m benchmarks $(ONLY)

# With SEEDS only the kills of the engine run, spread over that many seeds; without, everything that is ever killed.
ifdef SEEDS
faults: setup ## Kill real processes at named points (SEEDS=50: the engine alone, at so many random steps)
	SEEDS=$(SEEDS) $(PYTEST) -q -n 2 --dist load -m faults tests/faults/test_native_faults.py tests/faults/test_checkpoint_writer.py
else
faults: setup
	REPEATS=8 $(PYTEST) -q -n 2 --dist loadfile -m faults
endif

docs: reference ## Build the manual as a searchable site in build/site
	$(PYTEST) -q tests/architecture/test_docs.py tests/architecture/test_reference.py
	$(BIN)/python -m tools.docs.mermaid
	$(BIN)/zensical build --strict
	$(BIN)/python -m tools.docs.offline build/site

web: check-web ## Check the dashboard's sources, and build web/ into trainyard/surfaces/web (needs node and npm)
	cd web && npm run --silent build

reference: setup ## Build docs/reference, the types of the SDK and what agents read from the tables in the code
	$(BIN)/python -m tools.docs

sbom: setup ## Write the bill of materials (sbom.cdx.json) from constraints.txt
	$(BIN)/python -m tools.dependencies bill

audit: setup ## Look for advisories on the pinned versions (DATABASE=folder of OSV files; without: api.osv.dev)
	$(BIN)/python -m tools.dependencies audit $(DATABASE)

clean: ## Remove what the targets made, the downloaded dependencies excepted
	@test ! -x $(BIN)/trainyard || $(BIN)/trainyard down
	@test ! -d .trainyard || find .trainyard -mindepth 1 -maxdepth 1 ! -name envs -exec rm -rf {} +
	rm -rf build .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
