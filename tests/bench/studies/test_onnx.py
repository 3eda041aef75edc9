"""The ONNX benchmarks: what they compare is the same, and no family is passed over."""

import pytest
import torch

from milkweed.bench.studies.onnx import check_equal, smallest
from milkweed.models.architectures.timm_models import recorded_timm_models


def test_sides_are_measured_only_where_they_compute_the_same() -> None:
    x = torch.ones(2, 3)
    sides = {"torch dense": lambda x: x, "torch monarch": lambda x: 2 * x, "onnxruntime monarch": lambda x: 2 * x}
    check_equal({**sides, "openvino bfloat16 dense": lambda x: x + 0.05}, x)
    with pytest.raises(RuntimeError, match="onnxruntime dense computes something else than torch"):
        check_equal({**sides, "onnxruntime dense": lambda x: x + 2e-4}, x)


def test_each_family_is_tried_once_with_the_smallest_model() -> None:
    found = list(smallest())
    assert len(set(found)) == len(found)
    assert [dtype for arch, dtype in found if arch == "t2t_vit_7"] == ["float32", "float16", "bfloat16"]
    archs = {arch for arch, _ in found}
    assert {"vitae_basic_tiny", "vitaev2_s", "t2t_vit_7"} <= archs
    records = recorded_timm_models()
    families = [records[arch].family for arch in archs if arch in records]
    assert len(set(families)) == len(families) >= 40
