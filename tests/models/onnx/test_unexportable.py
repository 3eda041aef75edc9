"""Models that cannot be exported: each is refused in one line."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.errors import ExportError
from milkweed.models.onnx.export import write_verified


class Branching(nn.Module):
    """Does one thing or another, as its input is."""

    def forward(self, images: Tensor) -> Tensor:
        rows = images.mean((2, 3))
        return rows * 2 if bool(rows.sum() > 0) else rows


class Pairs(nn.Module):
    """Takes two images, no more and no less."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)).view(2, 3)


class Nowhere(nn.Module):
    """Answers with what is no number."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * float("nan")


class Foreign(nn.Module):
    """Does what ONNX has no operation for."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.special.i1e(images.mean((2, 3)))


class AnyBatch(nn.Module):
    """Lets the reference be computed for any batch; what is exported takes its own way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.model(images) if torch.compiler.is_exporting() else images.mean((2, 3))
        return out


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("model", "words"),
    [(Branching(), "data-dependent"), (Pairs(), "batch"), (Nowhere(), "off by nan"), (Foreign(), "i1e")],
)
def test_a_model_that_cannot_be_exported_is_one_clear_line(
    model: nn.Module, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with torch.inference_mode(), pytest.raises(ExportError, match=words) as caught:
        write_verified(AnyBatch(model), tmp_path / "model.onnx", 8)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().out == ""
