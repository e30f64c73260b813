# One virtual environment, made from pinned versions; `make help` lists what there is to do.
# Only what POSIX make and sh know, so that the make of macOS and of the BSDs works too.

PYTHON = python3
VENV = .venv
PEERS = .venv-peers
PIP_FLAGS =
PYTEST_FLAGS = -n 2
BENCHMARK_FLAGS =
RUNS = runs
GPU_CHECK_FLAGS = --minutes 8
DOCS_PORT = 8000

BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt
ONE_THREAD = OMP_NUM_THREADS=1
# what imports torch before torchdismech: threads sleep while they wait (docs/benchmarks.md, "Busy machines")
SLEEPING = OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} GOMP_SPINCOUNT=$${GOMP_SPINCOUNT:-10000}

.PHONY: help venv test test-slow test-extras docs docs-serve gallery demo fit-example tensorboard lint peers benchmark benchmark-rods benchmark-shells benchmark-contact benchmark-shards benchmark-threads profile benchmark-check gpu-check clean

help:
	@echo "make demo            simulate 64 rods from demo/scene.toml: a table, and the folder demo"
	@echo "make test            run the tests (PYTEST_FLAGS='-n 2' by default)"
	@echo "make test-slow       run the tests that are marked slow: hours"
	@echo "make test-extras     install the extras [plan], [rl], [movie], [export], [view3d] and [excel], and run the tests that need them"
	@echo "make docs            build the documentation in site/; a broken link or an undocumented public name fails"
	@echo "make docs-serve      build it and show it at http://127.0.0.1:8000 (DOCS_PORT)"
	@echo "make gallery         draw the robots of docs/gallery.md and their movies anew: some minutes"
	@echo "make fit-example     simulate a rod with hidden drag and bending law, recover both: a few minutes (see studies/hidden_laws)"
	@echo "make tensorboard     show the newest run of training in the browser (RUNS=runs: where runs are)"
	@echo "make lint            ruff check, ruff format --check, mypy"
	@echo "make benchmark       what a step costs, all in one table, beside peers (BENCHMARK_FLAGS='--quick' for a short look)"
	@echo "make benchmark-rods, benchmark-shells, benchmark-contact  parts of that table"
	@echo "make benchmark-shards what several processes gain; benchmark-threads: what threads do"
	@echo "make profile         where the time of a step goes"
	@echo "make benchmark-check the main ratios against their bars, in a few minutes; fails where one is missed"
	@echo "make gpu-check       what a machine with a CUDA device is to be asked, in 8 minutes: out/gpu/gpu.md (GPU_CHECK_FLAGS)"
	@echo "make venv            only make the virtual environment $(VENV)"
	@echo "make clean           remove $(VENV), caches and the site; the folders demo, $(RUNS) and out stay"
	@echo ""
	@echo "PYTHON=python3.12    which Python makes the environment (3.11 or newer)"
	@echo "PIP_FLAGS='...'          more options for pip, e.g. an index with CPU builds of torch (on Linux without a GPU"
	@echo "                         they are some gigabytes smaller)"

venv: $(VENV)/made

# A stamp each for the environment and for every set of extras: a second `make` installs nothing.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "torchdismech needs Python 3.11 or newer, but $(PYTHON) is" \
	        "`$(PYTHON) --version 2>/dev/null || echo not to be found`. Say which to use: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/with-view: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e '.[view]'
	@touch $@

$(VENV)/with-dev: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/with-train: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e '.[train]'
	@touch $@

$(VENV)/with-extras: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e '.[plan,rl,movie,export,view3d,excel]' meshio
	@touch $@

$(VENV)/with-benchmark: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e '.[benchmark]'
	@touch $@

$(VENV)/with-docs: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(VENV)/with-view
	$(BIN)/torchdismech demo --overwrite

# -W: any warning fails; -n is off, as torch's and numpy's pages are not at hand offline.
docs: $(VENV)/with-docs
	$(BIN)/python -m sphinx -W --keep-going -j auto -b html docs site

gallery: $(VENV)/with-view
	PYTHONPATH=. $(BIN)/python docs/pictures.py

docs-serve: docs
	@echo "http://127.0.0.1:$(DOCS_PORT)"; $(BIN)/python -m http.server --bind 127.0.0.1 --directory site $(DOCS_PORT)

test: $(VENV)/with-dev
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_FLAGS)

test-slow: $(VENV)/with-dev
	$(ONE_THREAD) $(BIN)/python -m pytest -m "slow and not gpu" $(PYTEST_FLAGS)

test-extras: $(VENV)/with-dev $(VENV)/with-extras
	$(ONE_THREAD) $(BIN)/python -m pytest tests/environments tests/studies/test_policies.py tests/constant_curvature/test_planning.py tests/io/test_tables.py
	$(ONE_THREAD) $(BIN)/python -m pytest -m "not gpu" tests/view

fit-example: $(VENV)/with-train
	$(SLEEPING) $(BIN)/python -m studies.hidden_laws.hidden_laws --out $(RUNS)/hidden_laws

tensorboard: $(VENV)/with-train
	@newest=`ls -td $(RUNS)/*/ 2>/dev/null | head -n 1`; \
	    test -n "$$newest" || { echo "no run in $(RUNS): fit something first, e.g. make fit-example" >&2; exit 1; }; \
	    echo "showing $$newest"; $(BIN)/tensorboard --logdir "$$newest"

lint: $(VENV)/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A peer with other needs gets an environment of its own. Where it cannot be installed the table says so.
peers: $(VENV)/made
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -c 'import newton, warp, importlib.metadata as m; m.version("dismech-newton")' 2>/dev/null || \
	    $(PEERS)/bin/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt dismech-newton || \
	    echo "dismech-newton cannot be installed here: the table will lack it" >&2

benchmark: $(VENV)/with-benchmark peers
	$(ONE_THREAD) $(BIN)/python -m benchmarks $(BENCHMARK_FLAGS)

benchmark-rods: $(VENV)/with-benchmark
	$(ONE_THREAD) $(BIN)/python -m benchmarks "E = " $(BENCHMARK_FLAGS)

benchmark-shells: $(VENV)/with-benchmark
	$(ONE_THREAD) $(BIN)/python -m benchmarks shells: $(BENCHMARK_FLAGS)

benchmark-contact: $(VENV)/with-benchmark
	$(ONE_THREAD) $(BIN)/python -m benchmarks contact: $(BENCHMARK_FLAGS)

benchmark-shards: $(VENV)/with-benchmark
	$(ONE_THREAD) $(BIN)/python -m benchmarks.shards

benchmark-threads: $(VENV)/with-benchmark
	$(BIN)/python -m benchmarks.threads

profile: $(VENV)/with-benchmark
	$(ONE_THREAD) $(BIN)/python -m benchmarks.profile

benchmark-check: $(VENV)/with-benchmark
	$(ONE_THREAD) $(BIN)/python -m benchmarks.check

gpu-check: $(VENV)/with-dev
	$(BIN)/python -m benchmarks.gpu $(GPU_CHECK_FLAGS)

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis site docs/generated
