# make demo: see it work.  make test: check it.  Both make .venv first when it is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-slow lint fmt clean bench bench-checkpoint

demo: $(STAMP)
	$(BIN)/gpuhop demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 -q -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q -m slow

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py

# Against other engines and clients: they are installed into a venv of their own (several minutes, see the file).
bench-checkpoint: $(STAMP)
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q -r benchmarks/requirements.txt
	PYTHONPATH=orchestrator:workers:. .venv-bench/bin/python benchmarks/checkpoint/run.py --write docs/bench-checkpoint.md

$(STAMP): pyproject.toml constraints.txt tools/install.py
	$(PYTHON) tools/install.py
	@touch $(STAMP)

clean:
	rm -rf .venv .venv-bench gpuhop-demo gpuhop-drill .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
