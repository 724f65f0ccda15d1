# Every target sets up what it needs by itself, in .venv, from the locked files in requirements/.
# Needs: GNU make, and a Python from 3.11 on. Nothing else has to be installed, no server has to run.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
# Where the files of tests are: in memory where the system can, since SQLite waits for its disk. Empty: in the usual place.
MEMORY = $(wildcard /dev/shm)
# Rewriting the assertions of all tests takes as long as a tenth of the tests, in each process: Python may keep what it compiled.
TEST_ENVIRONMENT = PYTHONDONTWRITEBYTECODE= PYTEST_DEBUG_TEMPROOT=$(MEMORY)
# Six processes, each with servers of its own, on free ports: on two cores four leave a quarter of the time unused, since tests also wait.
# Deep cases are long, so a process gets the next one when it needs it.
PYTEST = $(TEST_ENVIRONMENT) $(BIN)/python -m pytest --numprocesses 6 --durations 20

.DEFAULT_GOAL := help
.PHONY: help demo payments pipeline up down secrets test test-deep mutants bench peer-suites lint types imports docs docs-serve check format build lock clean FORCE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, ARGS='...' is passed on: make test ARGS='-k lease -x'"

demo: $(VENV)/demo.stamp ## Show equal jobs running once, on this machine, with a page to click
	@$(BIN)/onejob demo $(ARGS)

payments: $(VENV)/dev.stamp ## Show cards charged once, while the gateway fails and workers are killed
	@$(BIN)/python -m examples.payments $(ARGS)

pipeline: $(VENV)/dev.stamp ## Show two customers share a model by limits, and its provider refuse nothing
	@$(BIN)/python -m examples.pipeline $(ARGS)

up: $(VENV)/dev.stamp ## Serve the example of the job API, with its own PostgreSQL and Redis, until Ctrl-C
	@$(BIN)/python -m examples.job_api up $(ARGS)

down: $(VENV)/dev.stamp ## End what `make up` has started
	@$(BIN)/python -m examples.job_api down $(ARGS)

secrets: $(VENV)/dev.stamp ## Make a password and an API key for deploy/compose.yaml
	@deploy/make-secrets $(BIN)/onejob

test: $(VENV)/dev.stamp ## Run the tests: a witness of every law, in some minutes
	@$(PYTEST) --dist worksteal -m "not deep" $(ARGS)

test-deep: $(VENV)/dev.stamp ## Run the tests of many rounds, of killed and restarted servers, and of every store
	@$(PYTEST) --dist load --maxschedchunk 1 -m deep $(ARGS)

mutants: $(VENV)/dev.stamp ## Change the code in small ways, and list the changes that no test notices
	@$(BIN)/python -m tests.mutants $(ARGS)

bench: $(VENV)/dev.stamp .bench/peers.stamp ## Measure everything beside plain Celery and other libraries: half an hour
	@$(BIN)/python -m bench $(ARGS)

peer-suites: $(VENV)/dev.stamp ## Run the test suites of celery-singleton, celery-once, kombu and Celery on onejob
	@scripts/peer-suites $(BIN)/python $(ARGS)

lint: $(VENV)/dev.stamp ## Check style, format, and all files: names, sizes, links, pages, locks, manifests
	@$(BIN)/ruff check $(ARGS) .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m checks

types: $(VENV)/dev.stamp ## Check types, strictly, also those of users' code and of the pages
	@$(BIN)/mypy $(ARGS)
	@$(BIN)/python -m checks.types

imports: $(VENV)/dev.stamp ## Check that imports go one way
	@$(BIN)/lint-imports --no-logo $(ARGS)

docs: $(VENV)/dev.stamp ## Build the documentation site into build/website/site; a broken link fails
	@$(BIN)/python -m website build

docs-serve: $(VENV)/dev.stamp ## Serve the documentation site on localhost:8000, until Ctrl-C
	@$(BIN)/python -m website serve

check: ## All checks: lint, types, imports, the site, both tiers of tests, no slow test
	@MAKE='$(MAKE)' PYTHON='$(PYTHON)' .ci/run

format: $(VENV)/dev.stamp ## Rewrite the code in the project's format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

build: $(VENV)/dev.stamp ## Build the wheel and the source distribution into dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build --directory dist

lock: $(VENV)/pyvenv.cfg ## Resolve requirements/ again, for all platforms
	@scripts/lock $(BIN)/python $(ARGS)

clean: ## Remove everything that was made here
	@scripts/clean $(VENV)

# --- the environment ------------------------------------------------------------------------------------------------

$(VENV)/%.stamp: requirements/%.txt pyproject.toml $(VENV)/pyvenv.cfg
	@scripts/install $(BIN)/python $<
	@touch $@

# The libraries that onejob is compared with; those that cannot be installed are left out, and the bench says so.
.bench/peers.stamp: bench/peers.txt $(VENV)/pyvenv.cfg
	@scripts/peers $(BIN)/python $< .bench/venv
	@touch $@

# Runs always, and touches the file only when the environment is missing, broken or made for something else.
$(VENV)/pyvenv.cfg: FORCE
	@scripts/venv $(VENV) $(PYTHON)

FORCE:
