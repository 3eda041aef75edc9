"""The table of every model, docs/models.md: `python -m milkweed.bench.tables.models`, a few seconds, no weights.

milkweed's own architectures are built and counted here; timm's are those of `models/architectures/timm_models.json`,
which `python -m milkweed.bench.tables.timm_models` makes.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import fill

from ...models.accounting import COUNTER, macs, parameter_count
from ...models.architectures.meta_init import on_meta
from ...models.architectures.registry import (
    CUSTOM_VITAE,
    classifier_layers,
    create_model,
    default_preprocess,
    own_architectures,
)
from ...models.architectures.summary import linears_outside
from ...models.architectures.timm_models import RECORD, TimmModel, recorded_timm_models
from ...models.layers.layer_spec import layer_specs_for
from ...models.layers.select import select_linears

DEFAULT_DOC = Path("docs/models.md")
NBLOCKS = 4
SCOPES = {"MLPs": ("mlp",), "MLPs, qkv, proj": ("mlp", "qkv", "proj")}  # what is replaced in the table, by its heading
INTRODUCTION = """# Models

Every architecture that `--arch` takes, of 1000 classes. Made by `python -m milkweed.bench.tables.models`.

{counting} Parameters are all there are, frozen ones included; a float32 takes 4 bytes, a bfloat16 2. `milkweed inspect`
counts the same of a bundle, with what it would have if every layer were dense beside it.

## milkweed's own

Checked against what the original code gives with made-up weights: every logit within 1e-5 of its float64 (2e-5 for
vitae_basic_small), or the first outputs of every cell where no logits are on record
(`tests/models/architectures/test_parity.py`).
`vitae_basic` is ViTAE v1 with free arguments. ViTAEv2 takes every square `img_size` of 4n or 4n - 1 px, T2T-ViT
multiples of 16. On the right, all layers of that kind are Monarch ones of {nblocks} blocks.
"""

TIMM = """## timm's

{count} of the {names} names of timm {version}, under those names and with its classes. Listed is what

- takes square pictures of three channels and gives logits,
- has linear layers outside its classifier, each of which was replaced by a Monarch layer in a model that then ran, on
  tensors without memory (outside is what does not begin with the classifier's first name: `head` of `head.fc`),
- has no tensor that neither its state dict holds nor its constructor computes, nor one under two names.

{left_out}

So the commands take them; `compress --recover` those whose blocks are `blocks.N`. `mlp`, `qkv` and `proj` name the
layers of their blocks where those have timm's usual names; a pattern (`stages.2.*.mlp.*`) always works. The logits are
those of timm's own code. Computed, not only counted, were: ViT, DeiT and Mixer, compared with recorded logits; small
models of 26 names, taken through replacing, saving, loading, serving and making dense again by
`tests/models/architectures/test_timm_families.py`.
On a GPU, the fused kernels run blocks of `vision_transformer` and `deit` with
plain attention and MLPs; other blocks keep their own forward, and their Monarch layers run on the kernels one by one.

*linears*: layers that can be replaced. *share*: of the parameters, how many are in them. A star: timm does not cut the
centre out of a picture for this model but squashes or pads it; here the centre is cut out.
"""


@dataclass(frozen=True)
class Costs:
    """Parameters and multiply-accumulates of one image."""

    parameters: int
    macs: int


@dataclass(frozen=True)
class OwnModel:
    """A row of milkweed's own architectures; `scopes` in the order of SCOPES."""

    name: str
    image_px: int
    trainable: int
    linears: int
    dense: Costs
    scopes: tuple[Costs, ...]


def own_model(name: str) -> OwnModel:
    """Count one of milkweed's own architectures, dense and with each scope as Monarch layers."""
    with on_meta():
        model = create_model(name)
    size = int(default_preprocess(name)["size"])
    count, counted = parameter_count(model), macs(model, size)
    scopes = []
    for layers in SCOPES.values():
        structures = layer_specs_for(model, select_linears(model, layers), nblocks=NBLOCKS)
        saved = {layer: found.dense_weight_count - found.weight_count for layer, found in structures.items()}
        tokens = {layer: counted.by_layer[layer] // found.dense_weight_count for layer, found in structures.items()}
        saved_macs = sum(saved[layer] * tokens[layer] for layer in saved)
        scopes.append(Costs(count.total - sum(saved.values()), counted.total - saved_macs))
    linears = len(linears_outside(model, classifier_layers(name)))
    return OwnModel(name, size, count.trainable, linears, Costs(count.total, counted.total), tuple(scopes))


def page(own: Iterable[OwnModel]) -> str:
    """The whole page."""
    introduction = INTRODUCTION.format(counting=f"MACs are of one image: {COUNTER}.", nblocks=NBLOCKS)
    return "\n".join([_filled(introduction), *_own_table(own), "", _filled(_timm_text()), *_timm_tables(), ""])


def _own_table(rows: Iterable[OwnModel]) -> list[str]:
    heading = ["", "px", "parameters", "trainable", "GMACs", "linears"]
    heading += [f"{scope}: {what}" for scope in SCOPES for what in ("parameters", "GMACs")]
    lines = [_line(heading), _line(["---", *["---:"] * (len(heading) - 1)])]
    for row in rows:
        costs = [text for scope in row.scopes for text in (f"{scope.parameters:,}", _giga(scope.macs))]
        cells = [row.name, str(row.image_px), f"{row.dense.parameters:,}", f"{row.trainable:,}", _giga(row.dense.macs)]
        lines.append(_line([*cells, str(row.linears), *costs]))
    return lines


def _timm_text() -> str:
    record = json.loads(RECORD.read_text())
    left_out = sum(record["left_out"].values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in record["left_out"].items())
    text = f"Of the {left_out} others, {reasons}."
    count = len(record["models"])
    return TIMM.format(count=count, names=count + left_out, version=record["timm"], left_out=text)


def _timm_tables() -> list[str]:
    models = sorted(recorded_timm_models().items(), key=lambda item: item[1].family)
    lines = []
    for family, rows in groupby(models, key=lambda item: item[1].family):
        lines += [f"\n### {family}\n", _line(["", "px", "parameters", "GMACs", "linears", "share"])]
        lines.append(_line(["---", *["---:"] * 5]))
        lines += [_line(_timm_cells(name, model)) for name, model in rows]
    return lines


def _timm_cells(name: str, model: TimmModel) -> list[str]:
    star = "" if model.crop_mode == "center" else " *"
    share = f"{100 * model.linear_weights / model.parameters:.0f} %"
    return [name + star, str(model.image_px), f"{model.parameters:,}", _giga(model.macs), str(model.linears), share]


def _giga(count: int) -> str:
    return f"{count / 1e9:.3f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _filled(text: str) -> str:
    """Paragraphs wrapped; headings and lists stay."""
    parts = [part if part.startswith(("#", "-")) else fill(part, 120) for part in text.strip().split("\n\n")]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.tables.models", description=__doc__)
    parser.add_argument("--doc", type=Path, default=DEFAULT_DOC, help=f"default: {DEFAULT_DOC}")
    given = parser.parse_args(arguments)
    given.doc.write_text(page(own_model(name) for name in own_architectures() if name != CUSTOM_VITAE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
