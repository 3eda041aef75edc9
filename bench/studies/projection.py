"""How long activation-aware projection takes: the 48 linear layers of a ViT-B, covariances given.

    python -m milkweed.bench.studies.projection

Weights and covariances are drawn; their spectra fall as those of a trained model's do. The rival is plain
projection (truncated SVDs, no data) of the same layers in the same run.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from ...models.compress.projection.layer_fit import FitRequest, fit_layers
from ...models.compress.projection.statistics import InputStatistics
from ...models.layers.layer_spec import LayerSpec
from ..machine import machine

LAYERS = {"qkv": (2304, 768), "proj": (768, 768), "fc1": (3072, 768), "fc2": (768, 3072)}
"""Outputs and inputs of the linear layers of one of a ViT-B's 12 blocks."""

DECAY = 0.7  # variances fall as place^-DECAY, near what DeiT's layers show


def requests(nblocks: int, *, data: bool) -> dict[str, FitRequest]:
    """Every layer, with statistics of its inputs or without."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for block in range(12):
        for name, (outputs, inputs) in LAYERS.items():
            weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
            structure = LayerSpec("monarch", inputs, outputs, nblocks)
            statistics = _statistics(inputs, generator) if data else None
            found[f"blocks.{block}.{name}"] = FitRequest(weight, structure, statistics)
    return found


def _statistics(width: int, generator: torch.Generator) -> InputStatistics:
    """Moments of 250 images' tokens, whose variance falls along random directions."""
    vectors, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
    values = torch.arange(1, width + 1, dtype=torch.float64) ** -DECAY
    mean = torch.randn(width, generator=generator, dtype=torch.float64)
    return InputStatistics(mean, (vectors * values) @ vectors.T, 250 * 197)


def main() -> None:
    """Print and write the seconds of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nblocks", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("bench/results/projection.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    rows = {}
    for name, data in (("plain", False), ("activation-aware", True)):
        wanted = requests(args.nblocks, data=data)
        started = time.monotonic()
        layers = len(fit_layers(wanted))
        rows[name] = {"seconds": round(time.monotonic() - started, 1), "layers": layers}
        print(f"{name:<18} {layers} layers, nblocks {args.nblocks}: {rows[name]['seconds']} s", flush=True)
    ratio = round(rows["activation-aware"]["seconds"] / rows["plain"]["seconds"], 2)
    print(f"activation-aware takes {ratio} times as long as plain projection")
    document = {"machine": machine(), "nblocks": args.nblocks, "rows": rows, "ratio": ratio}
    args.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
