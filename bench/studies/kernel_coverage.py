"""Coverage: which of timm's transformers the CPU kernels compute, and which part keeps each of the others out.

    python -m milkweed.bench.studies.kernel_coverage [--out FILE] [--names PATTERN]

A model is made without weights and with one of its blocks, and its program assembled. The file has the number of names
of a family, the number of those that are computed, and the others by reason.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import timm
import torch

from ...kernels.cpu.assembly.assemble import assemble
from ...kernels.cpu.instruction_sets import SETS
from ...models.architectures.timm_models import type_name
from ...models.errors import first_line
from ...models.programs.from_model import BY_CLASS, VITS, program_of
from ...models.serving.fused.chains import NotFusable
from ..machine import about, save

PLAIN = next(isa for isa in SETS if isa.name == "plain")

FAMILIES = {
    "ViT, CLIP, SigLIP, DINOv2": ("vision_transformer",),
    "DeiT, DeiT III, CaiT": ("deit", "cait"),
    "BEiT, EVA, DINOv3": ("beit", "eva"),
    "Swin, ConvNeXt": ("swin_transformer", "swin_transformer_v2", "convnext"),
    "others of plain blocks": ("vision_transformer_relpos", "mlp_mixer", "xcit", "volo"),
}
"""timm's modules by family."""


def refusal(name: str) -> str:
    """Return why the kernels do not compute a model of timm; empty where they do."""
    with torch.device("meta"):
        model: Any = timm.create_model(name, num_classes=10)
    stages = next((getattr(model, name) for name in ("layers", "stages") if hasattr(model, name)), None)
    if type_name(model) not in (*VITS, *BY_CLASS):
        return f"there is no program for {type(model).__name__}"
    if stages is None:
        model.blocks = model.blocks[:1]
    for stage in stages or ():
        stage.blocks = stage.blocks[:2]
    model = model.to_empty(device="cpu").eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    for part in model.modules():
        getattr(part, "init_non_persistent_buffers", lambda: None)()
    try:
        assemble(program_of(model, model.default_cfg["input_size"][-1]), PLAIN)
    except (NotFusable, ValueError) as error:
        return first_line(error)
    return ""


def coverage(pattern: str = "*") -> dict[str, Any]:
    """Return, by family, the number of names, of those that are computed, and the others by reason."""
    families: dict[str, Any] = {}
    for family, modules in FAMILIES.items():
        names = [name for module in modules for name in timm.list_models(module=module) if fnmatchcase(name, pattern)]
        reasons = defaultdict[str, list[str]](list)
        for name in names:
            reasons[refusal(name)].append(name)
        computed = reasons.pop("", [])
        others = dict(sorted(reasons.items(), key=lambda reason: -len(reason[1])))
        families[family] = {"names": len(names), "computed": len(computed), "not_computed": others}
    return families


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print a table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the names go, as JSON")
    parser.add_argument("--names", default="*", help="a pattern of the names to try")
    options = parser.parse_args(arguments)
    load = os.getloadavg()
    families = coverage(options.names)
    for family, row in families.items():
        print(f"{family}: {row['computed']} of {row['names']}")
        for reason, names in row["not_computed"].items():
            print(f"  {len(names):4}  {reason}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}")
    if options.out is not None:
        save(options.out, {**about("kernel_coverage", load, ["timm"]), "families": families})


if __name__ == "__main__":
    main()
