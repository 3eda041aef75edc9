# milkweed in a container: built in some stages, run in one without compiler, pip, shell scripts or root.
#   docker build --tag milkweed:cuda .                              # CUDA kernels, DALI
#   docker build --build-arg VARIANT=cpu --tag milkweed:cpu .
#   docker build --build-arg VARIANT=light --tag milkweed:light .   # no PyTorch: graphs, and bundles for our CPU kernels
#   docker build --target sbom --output type=local,dest=. .         # sbom.cdx.json, CycloneDX
ARG VARIANT=cuda
ARG PYTHON=3.11
# Debian with Python; any that has `python` will do. By a tag it is whatever is there today: for builds that come out alike,
# and from what you have looked at, name a digest, python:3.11-slim-bookworm@sha256:...
ARG BASE=python:${PYTHON}-slim-bookworm

# What is installed is named by version and hash in deploy/image (`make lock`). PyTorch's CPU build is not on PyPI: its
# version is named, its hash is the index's word.
FROM ${BASE} AS packages
ARG VARIANT
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
ENV PATH=/opt/milkweed/bin:$PATH PYTHONSAFEPATH=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_DEPS=1
COPY constraints.txt deploy/image /locks/
RUN python -m venv /opt/milkweed && pip install --require-hashes --requirement /locks/${VARIANT}.txt
RUN if [ "${VARIANT}" = cpu ]; then \
        pip install --index-url "${TORCH_CPU_INDEX}" $(grep -E '^(torch|torchvision)==' /locks/constraints.txt); \
    fi

# Our CPU kernels, for every x86-64 there is.
FROM packages AS kernels-cpu
RUN apt-get update && apt-get install --yes --no-install-recommends g++ libjpeg-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY kernels milkweed/kernels
RUN PYTHONPATH=/src python -m milkweed.kernels.cpu.build && mv milkweed/kernels/_native /native

# nvcc of PyTorch's own CUDA, for every architecture or for those in ARCH. Of the sources only what it takes: this is slow.
FROM packages AS kernels-cuda
ARG ARCH=
# Python's headers are for bases that have none.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libjpeg-dev libpython3-dev \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --require-hashes --requirement /locks/nvcc.txt
WORKDIR /src
COPY kernels milkweed/kernels
RUN PYTHONPATH=/src python -m milkweed.kernels.native.build ${ARCH:+--arch ${ARCH}} \
    && PYTHONPATH=/src python -m milkweed.kernels.cpu.build
# The one C file that Triton would compile at its first launch: with it, nothing is compiled for the CPU at run time.
RUN PYTHONPATH=/src python -m milkweed.kernels.triton.driver_module && mv milkweed/kernels/_native /native

FROM kernels-cpu AS kernels-light

FROM kernels-${VARIANT} AS kernels

# NumPy where it finds no BLAS to link: that is half of its wheel, and the light server multiplies no matrices by NumPy.
FROM packages AS numpy-cpu
RUN mkdir /wheels

FROM numpy-cpu AS numpy-cuda

FROM numpy-cpu AS numpy-light
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libpython3-dev \
    && rm -rf /var/lib/apt/lists/*
RUN awk '/^[a-z]/ {numpy = /^numpy==/} numpy' /locks/light.txt > /numpy.txt \
    && PYTHONSAFEPATH= pip wheel --require-hashes --no-binary numpy --no-build-isolation --wheel-dir /wheels \
        --requirement /numpy.txt

FROM numpy-${VARIANT} AS numpy

FROM packages AS wheel
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY cli cli
COPY compress compress
COPY inference inference
COPY jobs jobs
COPY kernels kernels
COPY loaders loaders
COPY models models
COPY sdk sdk
COPY server server
COPY --from=kernels /native kernels/_native
RUN pip wheel --no-build-isolation --wheel-dir /wheels .

# Left out: what only compilers and debuggers read, what nothing here links to, modules for other Pythons; of NumPy its
# tests and what builds extensions; of Triton its profiler and what is for AMD's GPUs; of OpenVINO what reads other formats
# than ONNX or is for Intel's GPUs or several devices.
FROM packages AS installed
ARG VARIANT
COPY --from=numpy /wheels /wheels
COPY --from=wheel /wheels /wheels
RUN pip install --force-reinstall /wheels/*.whl \
    && if [ "${VARIANT}" = light ]; then \
        pip uninstall --yes cython meson meson-python ninja packaging pygments pyproject-metadata setuptools; \
    fi \
    && pip uninstall --yes pip \
    && suffix=$(python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))') \
    && cd /opt/milkweed/lib/python3*/site-packages \
    && rm -rf torch/include torch/share nvidia/*/include nvidia/cu*/lib/libcusolverMg* nvidia/libnvcomp/bin \
        triton/_C/libproton.so triton/FileCheck triton/include triton/instrumentation triton/plugins \
        triton/backends/amd/lib triton/backends/*/include triton/backends/nvidia/lib/cupti* \
        triton/backends/nvidia/bin/cuobjdump triton/backends/nvidia/bin/nvdisasm \
        openvino/include openvino/libs/cache.json openvino/libs/libopenvino_intel_[gn]pu_plugin.so \
        openvino/libs/libopenvino_gguf* openvino/libs/libopenvino_jax* openvino/libs/libopenvino_paddle* \
        openvino/libs/libopenvino_pytorch* openvino/libs/libopenvino_tensorflow* openvino/libs/libopenvino_auto* \
        openvino/libs/libopenvino_hetero* openvino/frontend/[jpt]* numpy/distutils numpy/f2py numpy/tests numpy/*/tests \
    && find . \( -name '*.a' -o -name '*.bc' ! -path './triton/*' -o -name '*.cpython-*.so' ! -name "*${suffix}" \) -delete
RUN apt-get update && apt-get install --yes --no-install-recommends binutils \
    && cd /opt/milkweed/lib/python3*/site-packages \
    && strip --strip-unneeded PIL/*.so httptools/parser/*.so numpy/*/*.so uvloop/loop.*.so \
        $(if [ "${VARIANT}" = cuda ]; then echo triton/_C/libtriton.so; fi)

# What is in the image, for whoever has to know: `--target sbom`. Python's packages, not Debian's.
FROM installed AS bill
RUN python -m venv /opt/cyclonedx \
    && PIP_NO_DEPS=0 /opt/cyclonedx/bin/pip install 'cyclonedx-bom>=7,<8' \
    && /opt/cyclonedx/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json /opt/milkweed/bin/python

FROM scratch AS sbom
COPY --from=bill /sbom.cdx.json /

# All that `light` has of Debian and Python: no shell, no apt.
FROM installed AS small
RUN sh /locks/small.sh /small

FROM ${BASE} AS root-cpu
# The base's own pip; the packages below have none. Python's library becomes bytecode here: later nothing can be written.
RUN if python -m pip --version; then python -m pip uninstall --yes pip setuptools wheel; fi \
    && python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

FROM root-cpu AS root-cuda

FROM scratch AS root-light
COPY --from=small /small /
ENV PATH=/opt/milkweed/bin:/usr/local/bin:/usr/bin LANG=C.UTF-8

FROM root-${VARIANT}
ARG VARIANT
ARG VERSION=0.2.0
ARG REVISION=
LABEL org.opencontainers.image.title="milkweed" \
      org.opencontainers.image.description="Serves Monarch-compressed vision models (${VARIANT})" \
      org.opencontainers.image.version="${VERSION}-${VARIANT}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=installed /opt/milkweed /opt/milkweed
# Nothing is written but what a mounted folder is for: the root may be read-only. Triton's cache is below HOME and holds
# code for GPUs alone: its module for the driver is in /opt/milkweed, and ldconfig need not be asked where the driver is.
ENV PATH=/opt/milkweed/bin:$PATH PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp MILKWEED_HOST=0.0.0.0 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_MANAGER=milkweed.kernels.triton.cache:DriverModuleCache TRITON_STORE_BINARY_ONLY=1 \
    TRITON_LIBCUDA_PATH=/usr/lib/x86_64-linux-gnu
USER 65532:65532
EXPOSE 8000 8001
# Kubernetes has probes of its own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 CMD ["python", "-m", "milkweed.server.process.healthcheck"]
# The server is PID 1 and handles SIGTERM itself: no shell in between.
STOPSIGNAL SIGTERM
ENTRYPOINT ["milkweed"]
CMD ["serve"]
