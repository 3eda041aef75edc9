# The commands a person types; CI types the same. Everything lives in .venv; installs repeat constraints.txt.

PYTHON ?= $(firstword $(foreach v,3.11 3.12 3.13 3.14,$(shell command -v python$(v))) python3)
PORT ?= 8000
BIN := .venv/bin
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# So that `python -m` from the root does not let server/, models/, ... hide other packages.
export PYTHONSAFEPATH := 1
# What one process has compiled the next one reads, also where the environment would have it otherwise.
export PYTHONDONTWRITEBYTECODE :=

CPU_KERNELS := kernels/_native/libmilkweed_cpu.so

.PHONY: serve test test-all test-floors check docs audit bench cpu-kernels kernels wheel image lock clean

# What serving needs, without PyTorch. The compiler and the package index need not wait for each other.
serve:
	@$(MAKE) --no-print-directory --jobs 2 .venv/.installed-serve $(CPU_KERNELS)
	$(BIN)/milkweed serve --port $(PORT)

# A process takes tests that lie side by side, since they share servers, and who is done first takes of the others' last ones;
# JOBS=0 for all in one. One process more than there are cores, since a fifth of the time tests wait.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
test: .venv/.installed-test $(CPU_KERNELS)
	$(PYTEST) -m "not slow"

# And what takes long and rarely fails: all shapes, sanitizers, studies, the commands of the documentation, a real Prometheus and
# other programs. At its end it says what it had no program for.
test-all: .venv/.installed-test $(CPU_KERNELS)
	$(PYTEST) --durations=20

# The lowest versions that pyproject.toml declares, all at once, in an environment of their own: what is declared is tried.
# Warnings of old packages about newer ones are no errors here.
FLOORS := .venv-floors/bin
test-floors: $(CPU_KERNELS)
	$(PYTHON) -m venv --clear .venv-floors
	$(FLOORS)/python -m pip install --quiet --disable-pip-version-check "uv>=0.5,<1"
	$(FLOORS)/uv pip install --quiet --python $(FLOORS)/python --resolution lowest-direct \
		--editable '.[serve,grpc,nvml,onnx,otel,quantize,train]' $$(grep -oE '"(pytest|hypothesis|pyyaml)>=[0-9.]+' pyproject.toml | tr -d '"')
	$(FLOORS)/python -m pytest -o filterwarnings= -p no:cacheprovider tests/cli/test_help.py tests/cli/test_process.py \
		tests/models/importing/test_timm_folders.py tests/models/onnx/test_plain.py tests/models/onnx/test_openvino_session.py::test_any_batch_where_none_is_told \
		tests/server/telemetry/test_tracer.py tests/server/oip/test_grpc.py tests/e2e/test_serving.py

check: .venv/.installed-check .venv/.installed-test $(CPU_KERNELS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p milkweed
	$(MKDOCS) build --strict --quiet
	$(BIN)/python tests/fuzz --seconds 60
	$(BIN)/python -m pytest --quiet tests/kernels/cpu/test_sanitizers.py -k programs
	$(MAKE) audit

# The documentation, read again as its files change. Its theme is told not to write about its own future.
docs: .venv/.installed-check
	$(MKDOCS) serve --dev-addr localhost:8800

# Known holes in what is installed, as of now: asks the package index, so it needs the network. What cannot be asked about fails.
audit: .venv/.installed-check
	@$(BIN)/pip-audit --strict --disable-pip --no-deps --progress-spinner off --requirement constraints.txt \
		|| { echo 'audit: failed: a hole above, or the package index could not be asked (needs the network)' >&2; exit 1; }

bench: .venv/.installed-bench
	$(BIN)/milkweed bench model
	$(BIN)/milkweed bench kernels
	$(BIN)/milkweed bench decode
	$(BIN)/milkweed bench http

# The CPU kernels, for all instruction sets: needs a C++ compiler, and nothing that is installed. Without them, as on a CPU that is
# no x86-64, PyTorch or OpenVINO computes.
cpu-kernels: $(CPU_KERNELS)
$(CPU_KERNELS): $(wildcard kernels/cpu/csrc/* kernels/images/*.cpp kernels/images/*.h) kernels/cpu/instruction_sets.py
	-@PYTHONPATH=.typings $(PYTHON) -m milkweed.kernels.cpu.build

# And the CUDA kernels: needs nvcc, no GPU. ARCH="90a" builds for one kind of GPU in a fraction of the time.
kernels: $(CPU_KERNELS) .venv/.installed-torch
	$(BIN)/python -m milkweed.kernels.native.build $(if $(ARCH),--arch $(ARCH))

# What a person installs, in dist/: the sources, a wheel without CPU kernels for any machine, and one with them for Linux on x86-64,
# both built of those sources. Nothing is in dist/ before all of it was looked at.
WHEELS := build/wheels
PIP_WHEEL := $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir
wheel: .venv/.installed-wheel
	rm -rf $(WHEELS) dist
	$(BIN)/python -m build --no-isolation --sdist --outdir $(WHEELS)
	CXX=none $(PIP_WHEEL) --wheel-dir $(WHEELS) $(WHEELS)/*.tar.gz
	$(PIP_WHEEL) --wheel-dir $(WHEELS)/linux $(WHEELS)/*.tar.gz
	PATH=$(CURDIR)/$(BIN):$$PATH auditwheel repair --wheel-dir $(WHEELS) $(WHEELS)/linux/*.whl
	rm -r $(WHEELS)/linux
	$(BIN)/twine check --strict $(WHEELS)/*
	$(BIN)/check-wheel-contents $(WHEELS)
	mv $(WHEELS) dist

# VARIANT=cpu for PyTorch's CPU build: no CUDA, no DALI. VARIANT=light for no PyTorch at all.
VARIANT ?= cuda
image:
	docker build --build-arg VARIANT=$(VARIANT) --tag milkweed:$(VARIANT) .

# The stamps make the second run quick: nothing is installed again until what they depend on changes.
.venv/bin/python:
	$(PYTHON) -m venv .venv

# One for each extra: `make install-models` brings what makes models, `make install-otel` what traces need.
.PRECIOUS: .venv/.installed-%
.venv/.installed-%: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(LATER) --editable '.[$*]'
	@touch $@

# A server imports a small part of what it installs, and compiles that at its first start.
.venv/.installed-serve: LATER := --no-compile

install-%: .venv/.installed-%
	@echo "$* is installed in .venv"

# What the image installs: the versions of constraints.txt, with hashes.
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --constraint constraints.txt --generate-hashes --no-emit-index-url \
	--no-header --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28

# Take the installed versions as the new constraints.
lock: .venv/.installed-test .venv/.installed-check .venv/.installed-bench .venv/.installed-wheel
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.5,<1"
	$(COMPILE) pyproject.toml --extra dali --extra grpc --extra otel --extra nvml --output-file deploy/image/cuda.txt
	$(COMPILE) pyproject.toml deploy/image/build.in --extra serve --output-file deploy/image/light.txt
	$(COMPILE) pyproject.toml --extra grpc --extra openvino --extra otel --extra torch --output-file deploy/image/cpu.txt \
		$$(grep -oE '^(nvidia|cuda)[a-z0-9-]*|^torch(vision)?|^triton' deploy/image/cuda.txt | sed 's/^/--no-emit-package /')
	$(COMPILE) deploy/image/nvcc.in --no-emit-package nvidia-cuda-runtime --output-file deploy/image/nvcc.txt

clean:
	rm -rf .venv .venv-floors build dist site *.egg-info kernels/_native
