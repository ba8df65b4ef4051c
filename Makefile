# Everything that a clone needs; nothing but Python 3.11 or newer, make and a package index has to be there.
#   PYTHON=python3.12   the interpreter that .venv is made with
#   DSN=postgresql://…  the database of `make demo` (SQLite in build/ when not given)
#   ARGS='-k lease -x'  more arguments for pytest, the demo, the bench or the kills
#   WORKERS=3           how many test files run at once; each of them has servers of its own

PYTHON ?=
DSN ?=
ARGS ?=
WORKERS ?= 3
BIN := .venv/bin
FOR_DEMO := $(if $(filter postgres%,$(DSN)),postgres,$(if $(filter mysql% mariadb%,$(DSN)),mysql,run))

unexport WORKERS  # handlers of the tests have a variable of that name
.DEFAULT_GOAL := help
.PHONY: help demo test chaos lint format types contracts bench clean setup

help: ## Print this list
	@echo 'usage: make TARGET [PYTHON=python3.12] [DSN=postgresql://...] [ARGS=...]'
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 14

demo: .venv/.made-for-$(FOR_DEMO) ## Set up .venv and run the demo on all cores (DSN=... for another database than SQLite)
	@$(BIN)/python -m shardrun.demo $(if $(DSN),--dsn '$(DSN)') $(ARGS)

test: .venv/.made-for-dev ## Set up .venv and the servers that the tests need, and run them all
	@$(BIN)/python -m scripts.servers
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

chaos: .venv/.made-for-dev ## Kill everything that can be killed, on every database, and judge what is left (ARGS='--minutes 5')
	@$(BIN)/python -m scripts.servers
	@$(BIN)/python -m tests.chaos $(ARGS)

lint: .venv/.made-for-dev ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: .venv/.made-for-dev ## Format all files and sort imports
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

types: .venv/.made-for-dev ## Check types, the tests' too
	@$(BIN)/mypy

contracts: .venv/.made-for-dev ## Check which module may import which
	@$(BIN)/lint-imports --no-logo

bench: .venv/.made-for-dev ## Measure rows per second on this machine
	@$(BIN)/python -m scripts.servers
	@$(BIN)/python -m bench $(ARGS)

clean: ## Remove .venv and all that was built
	rm -rf .venv build dist .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis

setup: .venv/.made-for-dev ## Set up .venv with everything for development

# run: what the demo needs; postgres, mysql: and a server's driver; dev: all of it. Made again only when pyproject.toml changes.
.venv/.made-for-%: pyproject.toml scripts/venv
	@scripts/venv $* '$(PYTHON)'
