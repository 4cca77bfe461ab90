# `make` or `make help` lists what there is.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup reproduce triad tasks bench test abuse lint clean

help:  ## This list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: .venv/ready  ## Install toydepth and its tools into .venv, with pinned versions

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@touch $@

reproduce: setup  ## The smooth-versus-rough result: one exponent well above 2, one about 1, in minutes
	$(BIN)/toydepth run +sweeps=alpha_quick

triad: setup  ## Loss against time, width and depth on one page, beside the papers' values
	$(BIN)/toydepth run +sweeps=time_quick
	$(BIN)/toydepth run +sweeps=width_quick
	$(BIN)/toydepth run +sweeps=alpha_quick
	$(BIN)/python -m toydepth.triad

tasks: setup  ## Which of 16 tasks a narrow encoder learns, beside exact theory, in two minutes
	$(BIN)/toydepth run +sweeps=tasks_quick

bench: .venv/bench  ## toydepth beside PyTorch and plain JAX: speed, compilation, memory; on an otherwise idle machine
	$(BIN)/python -m benchmarks.bench

.venv/bench: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' --constraint constraints.txt
	@touch $@

test: setup  ## All tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

abuse: setup  ## Kills, full disks, damaged files, two commands at once, in full: nothing may be lost
	$(BIN)/python -m pytest -m abuse

lint: setup  ## Formatting, imports, common mistakes, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

clean:  ## Remove the environment, caches and built files; outputs/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
