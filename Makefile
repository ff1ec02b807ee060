# Everything a newcomer needs is a target here; each brings up its own .venv from requirements.lock first.
# Needs only make and Python 3.11 (another interpreter: make PYTHON=/path/to/python3.11 ...).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first interpreter that is new enough. One that only looks so (a shim of a version that is not there) is passed over.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
  "$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.cleancut-installed
PYTEST_ARGS ?=
DEBIAN_PACKAGES := mosquitto redis-server strace faketime spin gcc
# Debian keeps daemons (mosquitto) out of an ordinary user's PATH; the tests start them as their own children.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# The stamp holds this folder's path: a tree that was copied with its .venv would otherwise run the original's code.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

.PHONY: venv
venv: $(STAMP) ## build or bring up to date the .venv that all targets use

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; install it, or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@# Somebody else's .venv is used as it is if its pip works and its scripts start from this folder; else it is made anew.
	@if ! { [ "$$(dirname "$$(head -n 1 $(VENV)/bin/pip | cut -c 3-)")" -ef $(VENV)/bin ] && $(PY) -m pip --version && \
	  $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; } >/dev/null 2>&1; then \
	  echo "building $(VENV) with $(PYTHON)"; $(PYTHON) -m venv --clear $(VENV); fi
	@echo "installing requirements.lock into $(VENV)"
	@$(PY) -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@printf '%s\n' "$(CURDIR)" >$(STAMP)

.PHONY: demo
demo: $(STAMP) ## a whole cluster on this machine: agents and leaders are killed and come back, then the proof (DEMO_ARGS="--seconds 30")
	@$(VENV)/bin/cleancut demo $(DEMO_ARGS)

.PHONY: check
check: $(STAMP) ## format, lint, types, import contracts
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

.PHONY: format
format: $(STAMP) ## put all files into the project's format and mend what the linter can mend
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

# Two processes: the tests that start whole clusters leave the second core idle half of the time. One file stays on one
# process, so that a file's tests may share what is costly to start.
.PHONY: test
test: $(STAMP) debian ## all tests (PYTEST_ARGS="tests/unit -k frame" for some)
	$(PY) -m pytest -q -n 2 --dist loadfile $(PYTEST_ARGS)
	@if [ -z "$(PYTEST_ARGS)" ]; then $(MAKE) --no-print-directory new-seeds; fi

# Other seeds each time: the time in seconds tells which, so that no two runs share any. A seed that fails is
# printed with the command that runs it again; what it found is then kept in tests/simulation/regress.
NEW_SEEDS_SECONDS ?= 60
.PHONY: new-seeds
new-seeds: $(STAMP) ## seeds that nobody has run before, for a minute (NEW_SEEDS_SECONDS=600 for more)
	@first=$$(( $$(date +%s) * 100000 )); echo "new seeds, from $$first on, for $(NEW_SEEDS_SECONDS) s"; \
	$(VENV)/bin/cleancut simulate sweep --seeds $$first..$$(( first + 99999 )) --seconds $(NEW_SEEDS_SECONDS) --jobs 2 --stop-at 1

.PHONY: sweep
sweep: $(STAMP) ## a long sweep: every kind of fault, every point, every rare state (SWEEP_ARGS="--seeds 0..99999 --jobs 8")
	@$(VENV)/bin/cleancut simulate sweep --probes $(or $(SWEEP_ARGS),--seeds 0..1999 --jobs 2)

.PHONY: chaos
chaos: $(STAMP) ## real processes killed, frozen and doubled for two minutes (CHAOS_ARGS="--seconds 3600 --seed 7")
	@$(PY) -m simulations.chaos $(CHAOS_ARGS)

.PHONY: debian
debian: # Programs that tests start as their children; installed where that is allowed.
	@missing=; for name in $(DEBIAN_PACKAGES); do command -v $$name >/dev/null || missing="$$missing $$name"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $${missing/ gcc/ gcc libc6-dev} >/dev/null; \
	else echo "not installed:$$missing. The tests that need them will fail; as root: apt-get install$$missing" >&2; fi

.PHONY: bench
bench: $(STAMP) ## the measurements, sized for a laptop: JSON and a table, ratios within one run
	@$(VENV)/bin/cleancut bench $(BENCH_ARGS)

.PHONY: bench-full
bench-full: $(STAMP) ## the measurements at full size (1 GB of state; minutes)
	@$(VENV)/bin/cleancut bench --full $(BENCH_ARGS)

.PHONY: lock
lock: $(STAMP) ## resolve pyproject.toml again into requirements.lock (LOCK_ARGS=--upgrade for newer versions)
	@$(PY) -m uv --version >/dev/null 2>&1 || $(PY) -m pip install -qq --disable-pip-version-check 'uv>=0.9'
	@# One version of each package for all Pythons and systems (fewest forks): what is tested is what is installed.
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-annotate \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --extra dev $(LOCK_ARGS) -o requirements.lock pyproject.toml
	@echo "requirements.lock: $$(grep -c '==' requirements.lock) packages"

.PHONY: clean
clean: ## remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
