# linkpass: `make demo` shows it, `make test` proves it. Every target is idempotent from a bare Debian 12 machine (root).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
CASES ?=
PYTEST_ARGS ?=
N ?= 10
# Options for pip when it installs torch, for instance another index with a smaller or an accelerator's build.
TORCH_PIP_ARGS ?=

.PHONY: help setup setup-test setup-guests link-pyverbs demo test check unit kernel guests e2e e2e-fabric e2e-hosts bench clean

help: ## Show the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

setup: $(STAMP)/run link-pyverbs ## Install what the daemon, the lab and the demo need (apt when missing, .venv)

setup-test: $(STAMP)/test ## Install what the tests need on top

$(STAMP)/venv: tools/apt-missing
	tools/apt-missing nft:nftables
	@command -v $(PYTHON) >/dev/null || tools/apt-missing --package python3-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "linkpass needs Python 3.11 or newer: $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/apt-missing --package python3-venv
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMP) && touch $@

$(STAMP)/torch: $(STAMP)/venv constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt $(TORCH_PIP_ARGS) torch
	touch $@

$(STAMP)/run: $(STAMP)/torch pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,lab,torchpass]'
	touch $@

# RDMA is optional: where verbs cannot be had, one line says why, and nothing else depends on it.
link-pyverbs: $(STAMP)/venv
	@$(BIN)/python tools/link-pyverbs

$(STAMP)/test: $(STAMP)/run
	tools/apt-missing ip:iproute2 ibsim:ibsim-utils ibnetdiscover:infiniband-diags opensm:opensm lldpd:lldpd promtool:prometheus chromium:chromium
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,lab,torchpass,dev]'
	touch $@

setup-guests: setup-test ## Install what emulated hosts need: QEMU, tools for its kernel, RDMA programs
	tools/apt-missing qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod xz:xz-utils zstd:zstd ib_write_bw:perftest rping:rdmacm-utils ibv_devinfo:ibverbs-utils
	ls /usr/lib/*/libibverbs/librxe-rdmav*.so >/dev/null 2>&1 || tools/apt-missing --package ibverbs-providers
	@# Debian's, which matches its rdma-core; the one on PyPI does not.
	test -d /usr/lib/python3/dist-packages/pyverbs || tools/apt-missing --package python3-pyverbs
	@$(BIN)/python tools/link-pyverbs

demo: setup ## Break a fabric under a training job and watch it go on
	$(BIN)/linkpass lab demo --out build/demo

check: setup-test ## The gates without the tests: style, types, the house's import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	if test -x $(BIN)/hadolint; then $(BIN)/hadolint Containerfile; else echo "Containerfile not linted: hadolint has no build for this machine"; fi

unit: setup-test ## The pure tests, with the core's branch coverage
	mkdir -p build
	CASES='$(CASES)' COVERAGE_FILE=build/.coverage $(BIN)/pytest -n 2 tests/core --cov=linkpass.core --cov-branch --cov-report=term --cov-fail-under=95 $(PYTEST_ARGS)
	CASES='$(CASES)' $(BIN)/pytest -n 2 -m 'not netns and not e2e and not guests' --ignore=tests/core $(PYTEST_ARGS)

kernel: setup-test ## The contract tests against a real kernel in network namespaces
	CASES='$(CASES)' $(BIN)/pytest -n 3 -m 'netns and not e2e and not guests' $(PYTEST_ARGS)

guests: setup-guests ## The RDMA tests in emulated hosts with soft-RoCE devices
	CASES='$(CASES)' $(BIN)/pytest -m guests --durations=12 $(PYTEST_ARGS)

e2e: e2e-fabric e2e-hosts ## Real daemons and real training jobs while fabric and hosts fail

e2e-fabric: setup-test # real daemons and a real training job while the fabric breaks
	CASES='$(CASES)' $(BIN)/pytest -m e2e --durations=12 --ignore=tests/torchpass_bridge $(PYTEST_ARGS)

e2e-hosts: setup-test # ranks that move: these wait for much, and leave half of the machine free
	CASES='$(CASES)' $(BIN)/pytest -n 2 --dist loadfile -m e2e --durations=12 tests/torchpass_bridge $(PYTEST_ARGS)

test: check unit kernel guests e2e ## Everything: gates and all tests (CASES=DIR adds the real files from outside)

bench: setup ## The figures of the README (N injections a case)
	mkdir -p build/bench
	$(BIN)/linkpass lab bench reroute --n $(N) --json build/bench/reroute.json
	$(BIN)/linkpass lab bench balance --json build/bench/balance.json
	$(BIN)/linkpass lab bench rest --json build/bench/rest.json

clean: ## Remove what was built (.venv stays)
	rm -rf build dist
