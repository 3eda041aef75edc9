"""Every family and kind of layer, exported: ONNX Runtime computes what torch does, to 1e-4."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from milkweed.models import create_model
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import CUSTOM_VITAE, own_architectures
from milkweed.models.layers.select import layer_specs_for, layer_specs_of, replace_linears, select_linears
from milkweed.models.onnx.export import write_verified
from milkweed.models.onnx.file import contents

from ..small_models import SHALLOW
from ..tiny import KIND_OPTIONS, TINY_T2T, TINY_VIT, TINY_VITAE, TINY_VITAE_V2, weighted
from .onnx_case import differences, made, noise

VIT: dict[str, Any] = {**TINY_VIT, "depth": 1}
VITAE: dict[str, Any] = {**TINY_VITAE, "depths": [0, 1]}
VITAE_V2: dict[str, Any] = {**TINY_VITAE_V2, "depths": [0, 0, 0, 1], "mlp_ratio": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("deit_tiny_patch16_224", VIT),
    "vit as fly's": ("vit_small_patch16_224", {**VIT, "separate_qkv": True, "norm_eps": 1e-5, "global_pool": "avg"}),
    "mixer": ("mixer_s16_224", {"img_size": 32, "patch_size": 8, "num_blocks": 1, "embed_dim": 32}),
    "vitae": (CUSTOM_VITAE, VITAE),
    "vitae with a class token": (CUSTOM_VITAE, {**SHALLOW, "depths": [1]}),
    "vitae v2": ("vitaev2_s", VITAE_V2),
    "t2t-vit": ("t2t_vit_7", TINY_T2T),
    "t2t-vit without a performer": ("t2t_vit_t_14", TINY_T2T),
}
"""Architectures, made small by their arguments: each is exported with all its linear layers Monarch."""

KINDS = ("lowrank", "blockdiag", "pixelfly")
PLAIN = {"MatMul", "Gemm", "Add", "Reshape", "Transpose"}

Written = Callable[[str, bool], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The file of a family, dense or Monarch, written once."""

    @functools.cache
    def write(family: str, monarch: bool) -> Path:
        file = tmp_path_factory.mktemp("families") / "model.onnx"
        verified = write_verified(made(*FAMILIES[family], monarch=monarch), file, 32)
        assert 0 < verified.error <= 1e-5
        return file

    return write


@pytest.fixture(scope="module")
def photos(shared: Path) -> Tensor:
    """Eight photographs, normalised, 32 px."""
    found = []
    for path in sorted((shared / "data" / "imagenet-sample").glob("*.JPEG"))[:8]:
        image = Image.open(path).convert("RGB").resize((32, 32))
        found.append(torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(32, 32, 3).permute(2, 0, 1))
    return torch.stack(found) / 64 - 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow_beyond(1)
def test_every_family_computes_what_torch_does(family: str, written: Written, request: pytest.FixtureRequest) -> None:
    file, model = written(family, True), made(*FAMILIES[family], monarch=True)
    assert max(differences(model, file, noise())) <= 1e-4
    assert max(differences(model, file, request.getfixturevalue("photos"))) <= 1e-4


def test_every_own_architecture_is_exported() -> None:
    tested = {type(create_model(arch, **arguments)) for arch, arguments in FAMILIES.values()}
    with on_meta():
        own = {type(create_model(arch)): arch for arch in set(own_architectures()) - {CUSTOM_VITAE}}
    assert {arch for kind, arch in own.items() if kind not in tested} == set()


@pytest.mark.slow
def test_every_kind_of_layer_computes_what_torch_does(tmp_path: Path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        vit = create_model("deit_tiny_patch16_224", num_classes=7, **VIT)
        for layer, kind in {"qkv": "lowrank", "proj": "blockdiag", "mlp": "pixelfly"}.items():
            replace_linears(vit, layer_specs_for(vit, select_linears(vit, [layer]), kind, **KIND_OPTIONS[kind]))
        assert {layer.kind for layer in layer_specs_of(vit).values()} == set(KINDS)
        return weighted(vit)

    file = tmp_path / "model.onnx"
    write_verified(model(), file, 32)
    assert max(differences(model(), file, noise())) <= 1e-4
    onnx.checker.check_model(str(file), full_check=True)


def test_a_monarch_layer_adds_products_and_as_few_transpositions_as_there_are(written: Written) -> None:
    dense, structured = (contents(written("deit", monarch))[0] for monarch in (False, True))
    added = {name: count - dense.get(name, 0) for name, count in structured.items() if count != dense.get(name, 0)}
    # qkv and proj: three each; fc1 and fc2 share one, so five.
    assert added.pop("Transpose") == 3 + 3 + 5
    assert added.pop("MatMul") == 4
    assert set(added) <= PLAIN
