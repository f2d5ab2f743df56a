# Two commands do everything on a bare machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.ready

.PHONY: setup demo test docs lint audit

setup: $(STAMP)

# Modules are compiled when something first imports them, and once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

# pip comes first: old versions take twice as long. torch comes next and by its exact version: a build that is there
# already is taken, and nothing newer is looked for.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) pip
	$(INSTALL) "$$(grep '^torch==' constraints.txt)" hatchling editables
	$(INSTALL) --no-build-isolation -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/argbeam demo --out demo

test: setup lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# The site, without a warning: docs/_build/index.html
docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

# What the index offers now must have the hashes of constraints.lock; pip-audit looks for known vulnerabilities.
audit: setup
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps \
		--only-binary=:all: --require-hashes -r constraints.lock
	$(VENV)/audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
