# milkweed in a container: built in one stage, run in another without compiler, pip cache or root.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
RUN python -m venv /opt/milkweed
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY bench bench
COPY kernels kernels
COPY loaders loaders
COPY models models
COPY server server
RUN /opt/milkweed/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="milkweed" \
      org.opencontainers.image.description="Serves Monarch-compressed vision models" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/milkweed /opt/milkweed
ENV PATH=/opt/milkweed/bin:$PATH PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8000 8001
# The server is PID 1 and handles SIGTERM itself: no shell in between.
ENTRYPOINT ["milkweed"]
CMD ["serve", "--host", "0.0.0.0"]
