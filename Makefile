# make help lists the targets. Everything happens in .venv; nothing is installed outside it.
# TORCH=torch==2.13.0 make demo (or any other word for pip) chooses torch; without it a machine that has no NVIDIA driver
# gets the CPU build where pip can have it, a tenth of the size, and any other the one that pip brings.
PYTHON ?= python3
PLAIN_TORCH := torch==2.13.0
TORCH ?= $(if $(shell command -v nvidia-smi),$(PLAIN_TORCH),$(PLAIN_TORCH)+cpu)
WHEELS ?= ../shared/wheels
BIN := .venv/bin
ONE_MORE = $(shell $(BIN)/python -c 'import os; print(len(os.sched_getaffinity(0)) + 1)') # tests of the gate wait for processes
SIDE_BY_SIDE := -n auto --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gate test-slow audit lint docs bench bench-full sbom clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

.venv/.run: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install -U pip
	@echo "installing $(TORCH) and the rest into .venv, minutes on a slow line"
	@$(PIP) install "$(TORCH)" 2>/dev/null || $(PIP) install "$(PLAIN_TORCH)"
	$(PIP) install -e .
	@touch $@

.venv/.dev: .venv/.run
	$(PIP) install -e '.[dev]'
	@$(PIP) install --no-index --find-links $(WHEELS) torch-scatter torch-sparse 2>/dev/null \
		|| echo "torch-sparse: no wheel for this platform under $(WHEELS); its tests will say that they are skipped"
	@touch $@

setup: .venv/.dev ## make .venv with everything a developer needs

demo: .venv/.run ## run the whole pipeline on the embedded data set and show the strangest nodes
	$(BIN)/hcm-scale run
	@echo "\nhcm-scale is in .venv: source .venv/bin/activate, or call $(BIN)/hcm-scale"

test: .venv/.dev ## all tests that are not slow and need no GPU
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE)

test-gate: .venv/.dev ## the wheel, killed and restarted ranks, launchers of sweeps
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -n $(ONE_MORE) -m gate $$(grep -rlE 'mark\.gate' tests --include='test_*.py')

test-slow: .venv/.dev ## the slow tests: large graphs, kills and resumes, real data
	$(BIN)/python -m pytest -q -m slow

audit: .venv/.dev ## files of strangers: damaged inputs, hostile graphs and runs, fuzzed folders, kills, secrets, kernels with bounds checks; minutes
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m 'audit or not (slow or gate or gpu)' \
		tests/fault/test_damage.py tests/fault/test_damaged.py tests/fault/test_stranger.py tests/fault/test_stuck.py \
		tests/fault/test_hostile_runs.py tests/fault/test_fuzzed_folders.py tests/fault/test_secrets.py \
		tests/fault/test_links.py tests/fault/test_sent_runs.py tests/fault/test_exports.py tests/cases/test_hostile.py \
		tests/ingest/test_hostile.py tests/report/test_sentences.py tests/edges/test_stream.py tests/serve \
		tests/test_bounds.py

lint: .venv/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.dev ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/.dev ## throughput against the peers, minutes on two cores
	$(BIN)/python -m bench all

bench-full: .venv/.dev ## the same at full size
	$(BIN)/python -m bench all --full

sbom: .venv/.dev ## the bill of materials of what a plain install brings, dist/sbom.cdx.json
	@mkdir -p dist
	$(BIN)/python -m bench.requirements > dist/requirements.txt
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml -o dist/sbom.cdx.json dist/requirements.txt

clean: ## remove .venv and caches, those of compiled kernels too
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache
	find hcm_scale bench -name '*.nb[ci]*' -delete
