# Everything sets itself up in .venv; a fresh machine needs Python 3.11+, make and pip.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo live sharded docs test test-long bench lint clean

demo: .venv/ready
	$(BIN)/python examples/demo.py

live: .venv/ready
	$(BIN)/python examples/live_loop.py

sharded: .venv/ready
	$(BIN)/python examples/sharded.py

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not long" -q

test-long: .venv/ready
	$(BIN)/pytest -n 2 --dist loadfile -q

bench: .venv/ready
	$(BIN)/python -m bench.compare

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[s3,postgres,demo,docs,transformers,dev]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
