# `make` lists the targets. Those that need the environment make it first, in .venv, and only once.

VENV = .venv
BIN = $(VENV)/bin
ARGS =

# The Python to build .venv with, and the index to take torch from; both are found where they aren't given.
PYTHON =
TORCH_INDEX =
TORCH_CPU = https://download.pytorch.org/whl/cpu

# Where the course is hosted, e.g. https://github.com/somebody/txlib: the website then has links to Colab and Binder.
REPOSITORY =

.DEFAULT_GOAL = help
.PHONY: help lab lab-author update test test-fast lint notebooks exercises site clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

lab: $(VENV)/installed-lab ## Open the course in JupyterLab (on a server: make lab ARGS=--no-browser)
	@$(BIN)/txcourse lab $(ARGS)

lab-author: $(VENV)/installed-lab ## The same for authors: the course itself, each .py paired with its .ipynb
	@$(BIN)/txcourse lab --author $(ARGS)

update: $(VENV)/installed-lab ## Bring in the newest version of the course; what you have done stays
	@$(BIN)/txcourse update

# As many processes as the machine has room for (tests/conftest.py), with a thread each.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --no-loadscope-reorder

test: $(VENV)/installed-dev ## Look over the code, then run every test, lessons and exercises too
	@$(MAKE) --no-print-directory lint ARGS=
	$(PYTEST) $(ARGS)

test-fast: $(VENV)/installed-dev ## Run the library's tests that take no minutes
	$(PYTEST) -m "not slow" $(or $(ARGS),tests/txlib tests/test_imports.py)

lint: $(VENV)/installed-dev ## Look over the code: style, layout, types
	$(BIN)/ruff check . $(ARGS)
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: $(VENV)/installed-lab ## Run every lesson's .py and write its .ipynb (one: ARGS=notebooks/03_attention.py)
	$(BIN)/python -m txcourse.build $(ARGS)

exercises: $(VENV)/installed-lab ## Release solutions/ to exercises/
	$(BIN)/txgrade release $(if $(ARGS),$(ARGS),solutions/*.py)

site: $(VENV)/installed-site ## Make the course a website, in build/site/html: it needs no server and no network
	@$(BIN)/python -m txcourse.site $(REPOSITORY)

clean: ## Remove .venv and caches; your notebooks, progress and trained models stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each of the three holds the one before it.
PROJECTS = pyproject.toml txgrade/pyproject.toml txcourse/pyproject.toml constraints.txt

$(VENV)/installed-lab: $(PROJECTS) | $(BIN)/python
	$(call install,-e . -e ./txgrade -e ./txcourse)
	@touch $@

$(VENV)/installed-site: $(PROJECTS) | $(BIN)/python
	$(call install,-e . -e ./txgrade -e "./txcourse[site]")
	@touch $@ $(VENV)/installed-lab

$(VENV)/installed-dev: $(PROJECTS) | $(BIN)/python
	$(call install,-e ".[dev]" -e "./txgrade[cluster]" -e "./txcourse[site]")
	@touch $@ $(VENV)/installed-site $(VENV)/installed-lab

# torch first, by itself: on Linux without an NVIDIA GPU the index of PyTorch, if it can be reached, has a torch
# without CUDA, a tenth of the size. What is installed already is left alone.
define install
	@echo "Installing into $(VENV). The first time takes some minutes and 2 GB of disk."
	@index="$(TORCH_INDEX)"; \
	if [ -z "$$index" ] && [ "`uname`" = Linux ] && ! command -v nvidia-smi >/dev/null && \
	   $(BIN)/python -c "import urllib.request as u; u.urlopen('$(TORCH_CPU)/torch/', timeout=5)" 2>/dev/null; \
	then index="$(TORCH_CPU)"; fi; \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
	    $${index:+--extra-index-url "$$index"} torch
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(1)
endef

# Where Debian's python3 comes without ensurepip, its pip can still fill the new environment.
$(BIN)/python:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null || continue; \
	    echo "Making $(VENV) with `$$python --version`"; \
	    $$python -m venv --clear $(VENV) >/dev/null 2>&1 && exit 0; \
	    $$python -m venv --clear --without-pip $(VENV) && \
	    $$python -m pip --python $(BIN)/python install -q pip && exit 0; \
	    rm -rf $(VENV); \
	    echo "make: $$python cannot make an environment; install its venv module, e.g. apt install python3-venv" >&2; \
	    exit 1; \
	done; \
	echo "make: no Python 3.11 to 3.14 found (python3 is `python3 --version 2>&1`)." >&2; \
	echo "Install one from https://www.python.org, or say where it is: make lab PYTHON=/path/to/python3.13" >&2; \
	exit 1
