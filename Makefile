# Two commands do everything on a fresh machine: `make demo` and `make test`.

VENV   := .venv
PYTHON := $(VENV)/bin/python
BIN    := $(VENV)/bin
PIP    := $(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow lint types test-fast docs test-browser bench clean

demo: $(VENV)/demo.stamp  ## train a small model for two minutes, print its bound, watch it write
	$(BIN)/logosphere train demo
	$(BIN)/logosphere sample --watch -n 3 --steps 64

test: lint types test-fast  ## lint, types and the fast tests: a few minutes

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

# One torch thread per test process: two processes with two threads each would only wait for one another.
test-fast: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m "not slow"

test-slow: $(VENV)/dev.stamp  ## the other tests: many cases, many samples, trainings that are killed
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m slow

docs: $(VENV)/docs.stamp  ## the documentation site, in site/
	PYTHONPATH=docs $(BIN)/zensical build --clean --strict --config-file mkdocs.yml

test-browser: $(VENV)/browser.stamp  ## the studio in chromium (Debian: chromium and chromium-driver); skipped without it
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/browser

bench: $(VENV)/dev.stamp  ## the figures of docs/results/ that take minutes, not hours
	for script in step_overhead bound_variance sampling_overhead oracle; do $(PYTHON) benchmarks/$$script.py || exit 1; done

$(PYTHON):
	python3 -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(PYTHON)
	$(PIP) --editable .
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(PYTHON)
	$(PIP) --editable ".[dev]"
	touch $@

$(VENV)/browser.stamp: $(VENV)/dev.stamp
	$(PIP) "selenium>=4.20"
	touch $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(PYTHON)
	$(PIP) --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
