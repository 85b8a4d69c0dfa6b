# The first Python >= 3.11 that can make a virtual environment. A version manager's shim may be on PATH and not run, so each is tried.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# The files name every package, so nothing is left to resolve.
PIP := -m pip --disable-pip-version-check install --quiet --no-deps
LOCAL := .venv/local.installed
DEV := .venv/dev.installed
BUILD := .venv-build/build.installed
E2E := .venv-e2e/e2e.installed
LOCK := .venv/bin/uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command 'make lock'
ANYWHERE := --python-version 3.11 --universal
LAMBDA := --python-version 3.13 --python-platform aarch64-manylinux_2_28
PINS := benchmarks/peers/pins
PEERS := chancy dbos pgqueuer procrastinate

export SAM_CLI_TELEMETRY ?= 0
export AWS_DEFAULT_REGION ?= us-east-1
# Compiled code is kept even where the environment says not to: the suite starts many processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo dev test test-thorough test-chaos chaos soak e2e lint format docs bench fuzz gate build lock clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: $(LOCAL) ## two thousand runs through the real handlers, on a local Postgres and SQS
	@.venv/bin/runlane demo

dev: $(LOCAL) ## the whole product on this machine, until interrupted
	@.venv/bin/runlane dev

test: $(DEV) ## every test but the thorough ones and the deployed stack's
	.venv/bin/python -m pytest -m "not thorough and not e2e and not chaos" --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-thorough: $(DEV) ## what those show, in every other shape and order
	.venv/bin/python -m pytest -m thorough --numprocesses 3 --dist load

test-chaos: $(DEV) ## two short seeds of it, and what befalls databases, on a machine to itself
	.venv/bin/python -m pytest tests/chaos -m chaos

chaos: $(DEV) ## twenty seeds of lost, doubled and late wakeups and killed workers, 5000 runs each
	.venv/bin/python -m tests.chaos.seeds $(if $(SEEDS),--seeds $(SEEDS)) $(if $(RUNS),--runs $(RUNS))

soak: $(DEV) ## a steady load under random faults for MINUTES=10, from a printed SEED
	.venv/bin/python -m tests.chaos.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

e2e: $(DEV) $(BUILD) $(E2E) ## builds the stack, deploys it to a local AWS and works it (needs python3.13 on PATH)
	.venv/bin/python -m pytest tests/e2e -m e2e

lint: $(DEV) ## style, types and the direction of imports
	.venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/mypy && .venv/bin/lint-imports

format: $(DEV) ## lay the code out as lint wants it
	.venv/bin/ruff check --fix && .venv/bin/ruff format

docs: $(DEV) ## the reference, from docstrings, settings and the command line
	.venv/bin/python -m docs.reference

bench: $(DEV) ## the figures, or only="FIGURE …", into docs/benchmarks.md
	.venv/bin/python -m benchmarks $(if $(only),--only $(only))

fuzz: $(DEV) ## looks for text that breaks a parser, for SECONDS=60
	@.venv/bin/python -c 'import atheris' 2>/dev/null || .venv/bin/python $(PIP) atheris==3.0.0
	.venv/bin/python -m tests.hostile.fuzz $(or $(SECONDS),60)

gate: $(DEV) ## has what a run costs grown? A minute
	.venv/bin/python -m benchmarks.gate

build: $(BUILD) ## what sam deploy ships, checked and built (needs python3.13 on PATH)
	.venv-build/bin/sam validate --lint && .venv-build/bin/sam build

lock: $(DEV) ## pin every requirements file anew from pyproject.toml
	$(LOCK) $(ANYWHERE) pyproject.toml --extra local --group install --output-file requirements.txt
	$(LOCK) $(ANYWHERE) pyproject.toml --extra local --extra testing --group install --group dev --constraint requirements.txt --output-file requirements-dev.txt
	$(LOCK) $(LAMBDA) pyproject.toml --constraint requirements.txt --output-file layers/dependencies/requirements.txt
	$(LOCK) $(ANYWHERE) --group build --output-file requirements-build.txt
	$(LOCK) --python-version 3.13 --python-platform x86_64-manylinux_2_28 --group lambda --constraint requirements.txt --output-file requirements-lambda.txt
	$(LOCK) --python-version 3.13 --universal --group e2e --output-file requirements-e2e.txt
	$(foreach peer,$(PEERS),$(LOCK) $(ANYWHERE) $(PINS)/$(peer).in --output-file $(PINS)/$(peer).txt &&) true
	$(LOCK) --python-version 3.12 --universal $(PINS)/oban.in --output-file $(PINS)/oban.txt

clean: ## away with what was installed and built
	rm -rf .venv .venv-build .venv-bench .venv-e2e .aws-sam

.venv .venv-build:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later with venv is needed: install it, or name it with make PYTHON=..." >&2; exit 1; }
	@echo "installing into $@ with $(PYTHON)"
	@$(PYTHON) -m venv $@

$(LOCAL): requirements.txt pyproject.toml | .venv
	@.venv/bin/python $(PIP) --require-hashes --requirement requirements.txt
	@.venv/bin/python $(PIP) --no-build-isolation --editable .
	@touch $@

$(DEV): requirements-dev.txt $(LOCAL)
	@.venv/bin/python $(PIP) --require-hashes --requirement requirements-dev.txt
	@touch $@

$(BUILD): requirements-build.txt | .venv-build
	@.venv-build/bin/python $(PIP) --require-hashes --requirement requirements-build.txt
	@touch $@

# The functions run on the Python of the emulator itself, so it is theirs.
$(E2E): requirements-e2e.txt
	@python3.13 -m venv .venv-e2e
	@.venv-e2e/bin/python $(PIP) --require-hashes --requirement requirements-e2e.txt
	@touch $@
