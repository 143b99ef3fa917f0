# `make` alone lists the targets.
.DEFAULT_GOAL := help

# What tools are run with, and a mark that the installation is complete.
python := .venv/bin/python
installed := .venv/.installed

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(installed) ## Install everything into .venv; the other targets do it when needed

# The build of torch: cpu, cuda, or auto, which is cpu on a machine without an NVIDIA driver. For
# another one than is installed: make clean setup TORCH=cuda
TORCH ?= auto

# The interpreter that .venv is made with: make setup PYTHON=/path/to/python
PYTHON ?= python3.11 python3.12 python3.13 python3.14 python3 python

$(installed): pyproject.toml constraints.txt
	@found=; for candidate in $(python) $(PYTHON); do \
	    if $$candidate -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' \
	        2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "error: none of $(PYTHON) is a Python >= 3.11 with ensurepip:" \
	        "install one (on Debian: python3 and python3-venv)" \
	        "or name it: make setup PYTHON=/path/to/python" >&2; \
	    exit 1; \
	fi; \
	echo "Installing into .venv (minutes and a gigabyte or more, when it is new) ..."; \
	$$found fl_app/field/packages.py --venv .venv --torch $(TORCH) --constraints constraints.txt \
	    --editable '.[dev]'
	@touch $@

.PHONY: run
run: setup ## Run the main job: seven algorithms compared on one task
	$(python) -m fl_app experiment=quickstart

# One process for each processor; each needs about a gigabyte of memory.
pytest := $(python) -m pytest -n logical --maxprocesses 8 --durations 10

.PHONY: test
test: setup ## Run the tests, but not the slow ones: three minutes on two cores
	$(pytest) -m "not slow" --dist worksteal

.PHONY: test-slow
test-slow: setup ## Run the slow tests, but not those of federations: a quarter of an hour
	$(pytest) -m "slow and not federation" --dist worksteal

# One after the other: they depend on time.
.PHONY: test-federations
test-federations: setup ## Run the tests of federations of real processes: 20 minutes
	$(python) -m pytest --durations 10 -m federation

.PHONY: check
check: setup ## Check format, style, types, imports and spelling, as before every commit
	$(python) -m ruff format --check
	$(python) -m ruff check
	$(python) -m mypy fl_app lab
	.venv/bin/lint-imports
	.venv/bin/codespell

.PHONY: bench
bench: setup ## Measure speed against a bare training loop
	$(python) -m lab.bench

.PHONY: mutants
mutants: setup ## Put faults into the code at random, and count those that its tests notice
	$(python) -m lab.mutation

.PHONY: faults
faults: setup ## Inject faults into real processes and links, and show a table
	$(python) -m lab.faults

.PHONY: twin
twin: setup ## Run eight real nodes, plan and simulate them, and compare: ALGORITHM=fedbuff, ten minutes
	$(python) -m lab.rack.twin $(or $(ALGORITHM),fedbuff)

.PHONY: boards
boards: setup ## Try services and compose files: about 20 minutes
	$(python) -m lab.boards

.PHONY: superlink-demo
superlink-demo: setup ## Run FedBuff on a real SuperLink and three SuperNodes
	$(python) -m lab.demo

.PHONY: constraints
constraints: setup ## Renew constraints.txt with the newest versions
	.venv/bin/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --extra dev --no-annotate \
	    --custom-compile-command "make constraints" --output-file constraints.txt pyproject.toml

.PHONY: reference
reference: setup ## Write docs/reference.md and the signatures in docs/api/ anew
	$(python) -m lab.docs.reference
	$(python) -m lab.docs.signatures

# --quiet would hide warnings from --strict.
.PHONY: docs
docs: setup ## Write the documentation as a site to site/
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict
	@echo "To open in a browser: site/index.html"

.PHONY: clean
clean: ## Remove .venv, caches and builds; outputs stay
	rm -rf .venv build dist site *.egg-info .hypothesis .*_cache
	find . -name __pycache__ -exec rm -rf {} +
