# Needs python3 >= 3.11, git and a package index; everything else is installed into .venv.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-build-isolation --constraint constraints.txt
MANIFEST := pyproject.toml constraints.txt

.PHONY: audit test lint docs evidence constraints clean

audit: $(VENV)/.language
	$(BIN)/touchstone audit

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

# A stamp is touched last, so that a step that was interrupted runs again from its start.
$(VENV)/.made: constraints.txt
	@test -n "$(PYTHON)" || { echo "touchstone: needs python3 >= 3.11 on the PATH" >&2; exit 2; }
	@test -f $@ || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --constraint constraints.txt pip setuptools
	@touch $@

$(VENV)/.language: $(VENV)/.made $(MANIFEST)
	@echo "installing touchstone (torch is large: this takes a few minutes)"
	$(INSTALL) --editable '.[language]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(MANIFEST)
	@echo "installing touchstone and all that the tests need (a few minutes)"
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.language

# Pins what is installed now; run it after `pip install -U -e '.[dev]'` and a green `make test`.
constraints:
	$(PIP) freeze --all --exclude-editable | sed 's/+cpu$$//' > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) site build
