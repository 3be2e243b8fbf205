# Two commands do everything on a fresh machine: `make demo` and `make test`.

VENV   := .venv
PYTHON := $(VENV)/bin/python
BIN    := $(VENV)/bin
PIP    := $(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow lint types test-fast docs test-browser audit bench dist clean

demo: $(VENV)/demo.stamp  ## train a small RDLM for two minutes, print its bound, show its text and that of a bundled model
	$(BIN)/logosphere train demo-blocks
	@echo; echo "Text of the model that was trained just now, for two minutes; a model so small has learned letters and words:"
	$(BIN)/logosphere sample --watch -n 3 --steps 64 --temperature 0.7
	@echo; echo "Text of the bundled model 'passages', RDLM in blocks that was trained for 32 CPU minutes on word pieces of children's stories:"
	$(BIN)/logosphere sample pretrained:passages -n 4 --temperature 0.7 --sampler left-to-right

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

audit: $(VENV)/dev.stamp  ## known vulnerabilities of the installed packages; skipped with a notice without a network
	$(PYTHON) tools/audit_packages.py --tools $(VENV)/audit

bench: $(VENV)/dev.stamp  ## the figures of docs/results/ that take minutes, not hours
	for script in step_overhead bound_variance sampling_overhead oracle; do $(PYTHON) benchmarks/$$script.py || exit 1; done

dist: $(VENV)/dev.stamp  ## the wheel and the source distribution, in dist/, tested in an empty environment
	$(PYTHON) tools/check_wheel.py --sdist

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
	rm -rf $(VENV) site dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
