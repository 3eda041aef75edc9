"""What checkov finds in the manifests and in the Dockerfile is what docs/kubernetes.md explains, and nothing else."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import COMBINATIONS, ROOT
from .test_pod import PAGE

SKIPPED = set(yaml.safe_load((ROOT / "deploy" / "checkov.yaml").read_text(encoding="utf-8"))["skip-check"])


def test_what_is_left_out_is_explained() -> None:
    assert set(re.findall(r"^\| `(CKV\w+)` \|", PAGE, re.MULTILINE)) == SKIPPED


@pytest.mark.slow
def test_every_finding_is_explained(kustomize: Any, tmp_path: Path) -> None:
    checkov = shutil.which("checkov")
    if checkov is None:
        pytest.skip("checkov is not installed")
    for names in COMBINATIONS:
        render = kustomize(*names)
        documents = list(render.documents)
        if not render.of("Deployment"):
            # The pod that KServe makes of a kind that checkov does not know.
            template = {"metadata": {"labels": render.pod_labels}, "spec": render.pod}
            metadata = {"name": "predictor", "namespace": "milkweed"}
            spec = {"selector": {"matchLabels": render.pod_labels}, "template": template}
            documents.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        # Dashboards have nothing for it, and are long.
        documents = [each for each in documents if "grafana_dashboard" not in each["metadata"].get("labels", {})]
        (tmp_path / f"{'+'.join(names)}.yaml").write_text(yaml.safe_dump_all(documents))
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    command = [checkov, "--directory", tmp_path, "--framework", "kubernetes", "dockerfile", "--skip-download"]
    result = subprocess.run([*command, "--output", "json"], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    reports = json.loads(result.stdout)
    assert {report["check_type"] for report in reports} == {"kubernetes", "dockerfile"}
    assert not [report for report in reports if report["results"]["parsing_errors"]]
    scanned = {check["file_path"] for report in reports for check in report["results"]["passed_checks"]}
    assert len(scanned) == len(COMBINATIONS) + 1
    failed = [check for report in reports for check in report["results"]["failed_checks"]]
    surprising = [(each["check_id"], each["resource"], each["file_path"]) for each in failed]
    assert not [each for each in surprising if each[0] not in SKIPPED]
    assert {each["check_id"] for each in failed} == SKIPPED, "what is explained is not found any more"
