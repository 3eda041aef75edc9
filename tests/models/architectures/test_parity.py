"""Every published architecture gives the logits of the original code, for generated weights."""

import json
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import create_model
from milkweed.models.serving.prepare import prepare_for_inference

VITAE = [f"vitae_basic_{size}" for size in ("tiny", "6m", "small", "base", "huge")]
T2T = [f"t2t_vit_{size}" for size in ("7", "10", "14", "24", "t_14")]
RECORDED = [*VITAE, "vitaev2_s", *T2T, "vit_small_patch16_224", "deit_tiny_patch16_224", "mixer_s16_224"]
"""The models whose logits are on record."""

BY_CELL = [
    *("vitae_basic_13m", "vitae_basic_large", "vitaev2_48m", "vitaev2_b", "t2t_vit_12", "t2t_vit_19"),
    *("deit_small_patch16_224", "mixer_b16_224"),
]
"""The models of which the first outputs of each cell are on record."""

# Small's logits are larger (17.7) and the original's own float32 is 5.9e-6 off; all others are within 1e-5.
TOLERANCE = {name: 2e-5 if name == "vitae_basic_small" else 1e-5 for name in RECORDED}


def build(name: str, fill: ModuleType) -> nn.Module:
    """A model with the golden weights; no time spent on an initialisation that is overwritten."""
    with on_meta():
        model = create_model(name)
    model.to_empty(device="cpu")
    fill.fill(model)
    return model


def test_every_recorded_model_is_compared(shared: Path, golden: dict[str, np.ndarray]) -> None:
    assert sorted(RECORDED) == sorted(name.removesuffix("__fp64") for name in golden if name.endswith("__fp64"))
    keys = [path.name.removesuffix("_keys.json") for path in (shared / "golden" / "keys").iterdir()]
    assert sorted([*RECORDED, *BY_CELL]) == sorted(keys)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.slow_beyond(2)
def test_logits_are_the_originals(name: str, fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor) -> None:
    # Huge takes 7 s an image: one is enough.
    count = 1 if name == "vitae_basic_huge" else 2
    with torch.inference_mode():
        got = build(name, fill)(images[:count]).numpy()
    assert np.abs(got - golden[f"{name}__fp64"][:count]).max() <= TOLERANCE[name]


@pytest.mark.parametrize("name", BY_CELL)
@pytest.mark.slow
def test_every_cell_gives_the_originals_values(shared: Path, name: str, fill: ModuleType, images: Tensor) -> None:
    recorded = json.loads((shared / "golden" / "keys" / f"{name}_keys.json").read_text())["cells_under_fill"]
    model = build(name, fill)
    got: dict[str, Tensor] = {}
    for cell in recorded:
        keep = partial(lambda cell, module, args, out: got.__setitem__(cell, out), cell)
        model.get_submodule(cell).register_forward_hook(keep)
    with torch.inference_mode():
        model(images[:1])
    assert len(recorded) >= 12
    for cell, want in recorded.items():
        first = got[cell].flatten()[:8].tolist()
        assert first == pytest.approx(want["first8_image0"], abs=2e-5), cell


@pytest.mark.parametrize(
    "name",
    ["vitae_basic_tiny", "vitae_basic_small", "vitaev2_s", "t2t_vit_7", "deit_tiny_patch16_224", "mixer_s16_224"],
)
@pytest.mark.slow_beyond(3)
def test_the_serving_form_gives_the_originals_logits(
    name: str, fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor
) -> None:
    model = prepare_for_inference(build(name, fill))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    with torch.inference_mode():
        got = model(images).numpy()
    assert np.abs(got - golden[f"{name}__fp64"]).max() <= TOLERANCE[name]


def test_the_comparison_notices_another_epsilon(
    fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor
) -> None:
    model = build("vitae_basic_tiny", fill)
    for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps *= 10
    with torch.inference_mode():
        got = model(images[:1]).numpy()
    assert np.abs(got - golden["vitae_basic_tiny__fp64"][:1]).max() > 3 * TOLERANCE["vitae_basic_tiny"]
