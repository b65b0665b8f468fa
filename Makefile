# `make` lists the targets. Targets that need the environment first create it in .venv, once.

VENV = .venv
BIN = $(VENV)/bin
ARGS =

# The Python for .venv, and the package index for torch. Both are detected if not set.
PYTHON =
TORCH_INDEX =
TORCH_CPU = https://download.pytorch.org/whl/cpu

# The address of your copy, e.g. https://github.com/somebody/txlib: the website then links to Colab and Binder.
REPOSITORY =

.DEFAULT_GOAL = help
.PHONY: help lab lab-author update test test-fast lint notebooks exercises site clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

lab: $(VENV)/installed-lab ## Open the course in JupyterLab (on a server: make lab ARGS=--no-browser)
	@$(BIN)/txcourse lab $(ARGS)

# instructors: begin
lab-author: $(VENV)/installed-lab ## Open the course itself, for authors: each .py is paired with its .ipynb
	@$(BIN)/txcourse lab --author $(ARGS)
# instructors: end

update: $(VENV)/installed-lab ## Fetch the newest version of the course; your work stays
	@$(BIN)/txcourse update

# instructors: begin
# As many processes as cores and memory allow (tests/conftest.py), one thread each. The tests start hundreds of
# processes, so what Python compiles is kept, even where the environment says otherwise, as many containers do.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --no-loadscope-reorder

test: $(VENV)/installed-dev ## Check the code, then run every test, lesson and exercise
	@$(MAKE) --no-print-directory lint ARGS=
	$(PYTEST) --durations=60 --durations-min=15 $(ARGS)

test-fast: $(VENV)/installed-dev ## Run the library's fast tests
	$(PYTEST) -m "not slow" $(or $(ARGS),tests/txlib tests/test_imports.py)

lint: $(VENV)/installed-dev ## Check the code: style, formatting, types
	$(BIN)/ruff check . $(ARGS)
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: $(VENV)/installed-lab ## Run every lesson's .py and write its .ipynb (only one: ARGS=notebooks/03_attention.py)
	$(BIN)/python -m txcourse.build $(ARGS)

exercises: $(VENV)/installed-lab ## Make exercises/ from solutions/
	$(BIN)/txgrade release $(if $(ARGS),$(ARGS),solutions/*.py)
# instructors: end

site: $(VENV)/installed-site ## Build the website in build/site/html; it needs no server and no network
	@$(BIN)/python -m txcourse.site $(REPOSITORY)

clean: ## Remove .venv and caches; your notebooks, progress and trained models stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each of the three includes the one before it.
PROJECTS = pyproject.toml txgrade/pyproject.toml txcourse/pyproject.toml constraints.txt

$(VENV)/installed-lab: $(PROJECTS) | $(BIN)/python
	$(call install,-e . -e ./txgrade -e ./txcourse)
	@touch $@

$(VENV)/installed-site: $(PROJECTS) | $(BIN)/python
	$(call install,-e . -e ./txgrade -e "./txcourse[site]")
	@touch $@ $(VENV)/installed-lab

# instructors: begin
$(VENV)/installed-dev: $(PROJECTS) | $(BIN)/python
	$(call install,-e ".[dev]" -e "./txgrade[cluster]" -e "./txcourse[site]")
	@touch $@ $(VENV)/installed-site $(VENV)/installed-lab
# instructors: end

# Install torch first. On Linux without an NVIDIA GPU, PyTorch's own index, if reachable, has a build without CUDA
# that is a tenth of the size. pip keeps packages that are already installed.
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

# Debian's python3 may lack ensurepip; its own pip can still fill the new environment.
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
	echo "Install one from https://www.python.org, or name it: make lab PYTHON=/path/to/python3.13" >&2; \
	exit 1
