# specjax: set-up and checks. `make help` lists the targets.
#
# The first target that needs it creates the environment $(VENV); later runs install nothing and need no network.
# PYTHON=/path/to/python chooses the interpreter (and makes $(VENV) anew when it was made from another one).

VENV        ?= .venv
OLDEST      ?= .venv-oldest
COMPILERS   ?= .venv-contracts
PYTEST_ARGS ?=
# Processes that share the tests; each may hold a model of 1 GB. One on an accelerator, which they cannot share.
WORKERS     ?= 2
# -c: a file named in PYTEST_ARGS must not move pytest's idea of where the repository is.
PYTEST       = -m pytest -c pyproject.toml --numprocesses $(WORKERS) --dist worksteal

PIP = -m pip install --quiet --disable-pip-version-check --no-input --root-user-action=ignore

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-oldest contracts lint format clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## generate text with a small model and compare with plain decoding (minutes on a CPU)
	$(VENV)/bin/specjax generate --jsonl configs/demo_prompts.jsonl --compare --max-new-tokens 80

test: $(VENV)/.installed ## the tests, without the long exactness runs (PYTEST_ARGS="-k cache -x" narrows them)
	$(VENV)/bin/python $(PYTEST) $(PYTEST_ARGS)

test-all: $(VENV)/.installed ## every test, the long exactness runs too
	$(VENV)/bin/python $(PYTEST) -m "" $(PYTEST_ARGS)

test-oldest: $(OLDEST)/.installed ## the smoke tests on Python 3.11 with the oldest supported versions
	$(OLDEST)/bin/python $(PYTEST) -m smoke $(PYTEST_ARGS)

# Other devices' compilers run on the host; their programs are not stored, and CPU code is not what is looked at.
contracts: $(COMPILERS)/.installed ## what the compilers for TPU and GPU make of the programs (minutes; needs no device)
	JAX_PLATFORMS=cpu XLA_FLAGS= REQUIRE_COMPILERS=1 \
	    $(COMPILERS)/bin/python $(PYTEST) tests/contracts -m contracts --durations=0 $(PYTEST_ARGS)

lint: $(VENV)/.installed ## lint, formatting, types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python

format: $(VENV)/.installed ## repair what lint can repair
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

clean: ## remove the environments and every cache
	rm -rf $(VENV) $(OLDEST) $(COMPILERS) build dist .pytest_cache .ruff_cache
	find specjax tests scripts -name __pycache__ -prune -exec rm -rf {} +

# The environments. .interpreter names the Python that one was made from, .installed is newer than everything
# that decides its packages. Both are written last, so an interrupted set-up is repeated.

$(VENV)/.interpreter:
	@python=$$(PYTHON='$(PYTHON)' scripts/find_python.sh) && \
	if [ "$$python" != "$$(cat $@ 2>/dev/null)" ]; then \
	    echo "Creating $(VENV) with $$("$$python" --version) ($$python) ..." && \
	    "$$python" -m venv --clear $(VENV) && \
	    echo "$$python" >$@; \
	fi

ifneq ($(strip $(PYTHON)),)
$(VENV)/.interpreter: FORCE
endif

$(VENV)/.installed: pyproject.toml $(VENV)/.interpreter
	@echo "Installing specjax, JAX and the test tools into $(VENV) (the first time some minutes) ..."
	@$(VENV)/bin/python $(PIP) --editable '.[all,test]'
	@$(VENV)/bin/python -c 'import jax, flax; print(f"Ready: jax {jax.__version__}, flax {flax.__version__}")'
	@touch $@

$(OLDEST)/.interpreter:
	@python=$$(scripts/find_python.sh 3.11) && \
	echo "Creating $(OLDEST) with $$("$$python" --version) ($$python) ..." && \
	"$$python" -m venv --clear $(OLDEST) && \
	echo "$$python" >$@

$(OLDEST)/.installed: pyproject.toml tests/oldest-constraints.txt $(OLDEST)/.interpreter
	@echo "Installing specjax and the oldest versions it supports into $(OLDEST) (the first time some minutes) ..."
	@$(OLDEST)/bin/python $(PIP) --constraint tests/oldest-constraints.txt --editable '.[all,test]'
	@$(OLDEST)/bin/python -c 'import jax, flax; print(f"Ready: jax {jax.__version__}, flax {flax.__version__}")'
	@touch $@

$(COMPILERS)/.interpreter:
	@python=$$(PYTHON='$(PYTHON)' scripts/find_python.sh) && \
	echo "Creating $(COMPILERS) with $$("$$python" --version) ($$python) ..." && \
	"$$python" -m venv --clear $(COMPILERS) && \
	echo "$$python" >$@

$(COMPILERS)/.installed: pyproject.toml $(COMPILERS)/.interpreter
	@echo "Installing specjax and the compilers for TPU and GPU into $(COMPILERS) (the first time some minutes) ..."
	@$(COMPILERS)/bin/python $(PIP) --editable '.[cli,models,test,tpu,cuda-compiler]'
	@$(COMPILERS)/bin/python -c 'import jax, flax; print(f"Ready: jax {jax.__version__}, flax {flax.__version__}")'
	@touch $@
