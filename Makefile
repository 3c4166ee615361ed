# Everything a checkout needs, from a machine with Python 3.11-3.13 and g++ only.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
TASK ?= tasks/vector_add.yaml
# Three keep two cores busy: a test waits for the processes that it starts.
JOBS ?= 3
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
# Whoever has nothing left to do takes from the other's tests; conftest.py puts long ones first.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

CANDIDATE_SOURCES = $(shell find candidates -type f \( -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' \) 2>/dev/null | LC_ALL=C sort)

# Tests reach into modules on purpose and need not annotate every helper.
LOOSER_TYPES := --implicit-reexport --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls \
	--no-strict-equality --disable-error-code union-attr --disable-error-code type-var \
	--disable-error-code exhaustive-match --disable-error-code index --disable-error-code attr-defined \
	--no-warn-unused-ignores \
	--cache-dir .mypy_cache/tests

.PHONY: help setup demo test test-all research-test zoo mutants check fix lock bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make or refresh .venv from the hashed locks (MINI_KV_PYTHON, MINI_KV_NVCC=1)
	@bash scripts/setup.sh

demo: setup ## verify one shipped candidate from end to end (TASK=tasks/rmsnorm.yaml for another)
	@$(BIN)/mini-kv verify --task $(TASK)

test: setup ## run the tests that every change must pass (PYTEST_ARGS="-k name", JOBS=4)
	@$(PYTEST) $(PYTEST_ARGS)

test-all: setup ## run the nightly tests too, the whole zoo among them
	@$(PYTEST) --nightly $(PYTEST_ARGS)

research-test: setup ## run the tests of research/, which 'make test' leaves out
	@$(BIN)/python -m pytest -n $(JOBS) research/tests $(PYTEST_ARGS)

zoo: setup ## run every hostile candidate and every honest twin of tests/zoo
	@$(PYTEST) --nightly -m zoo $(PYTEST_ARGS)

mutants: setup ## mutate the code that decides verdicts; name what no unit test notices (MUTANTS_ARGS=--all)
	@$(BIN)/python scripts/run_mutants.py --jobs $(JOBS) $(MUTANTS_ARGS)

# Every check runs, whatever an earlier one found: one run shows all there is to mend. They run concurrently,
# and what they print is shown in this order.
check: setup ## format, lint, types, layers, schemas, pages and committed data; changes nothing
	@folder=$$(mktemp -d); trap 'kill $$(jobs -p) 2>/dev/null || true; rm -rf "$$folder"' EXIT; \
	names=(); pids=(); failed=(); \
	run() { local name=$$1; shift; "$$@" >"$$folder/$$name" 2>&1 & names+=("$$name"); pids+=($$!); }; \
	cxx_format() { $(BIN)/clang-format --dry-run -Werror "$$@" 2>&1 \
		| sed -nE 's/^([^:]+):[0-9]+:.*code should be.*/Would reformat: \1/p' | LC_ALL=C sort -u; }; \
	run format $(BIN)/ruff format --check --output-format concise; \
	run lint $(BIN)/ruff check --quiet --output-format concise; \
	$(if $(CANDIDATE_SOURCES),run format-cxx cxx_format $(CANDIDATE_SOURCES);) \
	run types $(BIN)/mypy; \
	run types-tests env MYPYPATH=tests $(BIN)/mypy $(LOOSER_TYPES) tests research/tests/*.py; \
	run layers $(BIN)/lint-imports --no-logo; \
	run schemas $(BIN)/python scripts/validate_schemas.py; \
	run reference $(BIN)/python scripts/generate_reference.py --check; \
	run pages $(BIN)/python -m research.pages --check; \
	for n in "$${!names[@]}"; do \
		echo "== $${names[n]}"; wait "$${pids[n]}" || failed+=("$${names[n]}"); cat "$$folder/$${names[n]}"; \
	done; \
	if (( $${#failed[@]} )); then echo "check: failed: $${failed[*]} ('make fix' mends formatting, schemas, reference and pages)" >&2; exit 1; fi; \
	echo "check: all passed"

fix: setup ## rewrite what can be: formatting, imports, schemas, reference, pages
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format
	@$(if $(CANDIDATE_SOURCES),$(BIN)/clang-format -i $(CANDIDATE_SOURCES))
	@$(BIN)/mini-kv schema --write schemas | { grep -v '^unchanged' || true; }
	@$(BIN)/python scripts/generate_reference.py
	@$(BIN)/python -m research.pages

lock: setup ## resolve the requirements again (LOCK_ARGS=--upgrade for the newest releases)
	@bash scripts/lock.sh $(LOCK_ARGS)

bench: setup ## run the project's own benchmarks
	@if [ -f scripts/bench.sh ]; then bash scripts/bench.sh; else echo "bench: there is no scripts/bench.sh yet" >&2; exit 2; fi

clean: ## delete builds and caches; keeps .venv and artifacts
	@rm -rf .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests scripts research -type d -name __pycache__ -prune -exec rm -rf {} +
