# Every target works first on a fresh clone: it makes .venv and installs what it needs.
# Nothing is installed again until pyproject.toml or constraints.txt change.

PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types bench docs clean

demo: .venv/dev.stamp
	$(BIN)/python examples/demo.py

test: .venv/dev.stamp
	$(BIN)/python -m pytest

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.stamp
	$(BIN)/mypy

bench: .venv/bench.stamp
	$(BIN)/python examples/benchmarks/fit_time.py --rows 1200 --repeats 3
	$(BIN)/python examples/benchmarks/fit_time.py --texts documents --rows 160 --passes 1
	$(BIN)/python examples/benchmarks/fit_time.py --model base --rows 160 --passes 1 --repeats 3
	$(BIN)/python examples/benchmarks/embed.py --rows 4000 --repeats 3 --accuracy
	$(BIN)/python examples/benchmarks/embed.py --texts documents --rows 1000
	$(BIN)/python examples/benchmarks/embed.py --model base --rows 500 --repeats 3
	$(BIN)/python examples/benchmarks/growth.py --out docs/growth.png
	$(BIN)/python examples/benchmarks/search.py
	$(BIN)/python examples/benchmarks/latency.py
	$(BIN)/python examples/benchmarks/memory.py --out docs/memory.png
	$(BIN)/python examples/benchmarks/pretraining.py --part projection
	$(BIN)/python examples/benchmarks/learning.py --task intents --rows-per-class 16

docs: .venv/docs.stamp
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf build dist docs/_build docs/generated .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# One pip call for each set, so that the constraints hold for torch too.
.venv/dev.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e ".[dev]"
	touch $@

.venv/bench.stamp: .venv/dev.stamp
	$(PIP_INSTALL) -e ".[bench,dev]"
	touch $@

.venv/docs.stamp: .venv/dev.stamp
	$(PIP_INSTALL) -e ".[dev,docs]"
	touch $@
