# make run [SPACE=file.yaml]   search a space by real training (default: search_spaces/quickstart.yaml)
# make test                    the suite without its slow part        make test-all   all of it, with a table
# make lint                    ruff, mypy, import contracts           make clean      remove what these made
#
# Every version comes from .constraints.txt. PIP_ARGS adds options to each pip call.

SPACE ?= search_spaces/quickstart.yaml
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c .constraints.txt $(PIP_ARGS)

# DeepSpeed would otherwise try to compile at installation.
export DS_BUILD_OPS := 0

.PHONY: run test test-all lint clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed-train
	@$(BIN)/python -m tuner run $(SPACE)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -m "not slow"

test-all: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q --result-table=experiments/test-all.md

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no python3.11 or python3 on PATH; install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# A stamp inside the environment, written only after the whole installation succeeded.
$(VENV)/.installed-train: pyproject.toml .constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(INSTALL) -e '.[train]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml .constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with every extra (several minutes the first time)"
	@$(INSTALL) -e '.[all,dev]'
	@touch $@ $(VENV)/.installed-train

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
