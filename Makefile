# Two commands for a fresh clone with nothing installed but Python 3.11 or newer:
#
#   make demo    compile a real trained model, run it on real files, show what was fused and compare the time
#   make test    run the whole test suite
#
# Each makes .venv on its first run and installs what it needs there; later runs start at once.

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# Two test processes: enough for small machines, and the tests hold their own threads.
WORKERS ?= 2

.PHONY: demo test lint types clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo-installed
	@$(VENV)/bin/python examples/demo.py

test: $(VENV)/.dev-installed
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(VENV)/.dev-installed
	$(VENV)/bin/ruff check .

types: $(VENV)/.dev-installed
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

# A stamp is written after its install succeeded, so that an interrupted one is taken up again.
$(VENV)/.demo-installed: $(VENV)/.created pyproject.toml
	@echo "== installing opfuse and the demo's packages into $(VENV) (once)"
	$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/.dev-installed: $(VENV)/.created pyproject.toml
	@echo "== installing opfuse and the tests' packages into $(VENV) (once)"
	$(PIP) install --editable '.[dev]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "opfuse needs Python 3.11 or newer; say which one with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	@touch $@
