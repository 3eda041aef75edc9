"""Records timm's classifiers that milkweed serves: `python -m milkweed.bench.timm_models`, a quarter of an hour.

Every name of timm is built without weights. It is left out if it takes no square pictures, gives no logits, has no
linear layer outside its classifier, or tensors that a bundle cannot hold. Of the others all those layers are replaced
by Monarch ones, and the model is run: each must be used as a layer. Writes `models/architectures/timm_models.json`,
a part of the package.
"""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from ..models.accounting import macs
from ..models.architectures.meta_init import built_on_meta, on_meta
from ..models.architectures.summary import linears_outside
from ..models.architectures.timm_models import TimmModel, create_timm_model, timm_classifier
from ..models.layers.layer_spec import LayerSpec
from ..models.layers.select import replace_linears

OUT = Path("models/architectures/timm_models.json")
CLASSES = 1000


class LeftOut(ValueError):
    """A model that is not served; the message says what such models do."""


def examine(name: str) -> TimmModel:
    """What there is to know of a name of timm.

    Raises:
        LeftOut: it is not served; or whatever its class raises.
    """
    config = timm.models.get_pretrained_cfg(name)
    if config is None or config.input_size[0] != 3 or config.input_size[1] != config.input_size[2]:
        raise LeftOut("take no square pictures")
    if not config.classifier:
        raise LeftOut("give no logits")
    with on_meta():
        model = create_timm_model(name, CLASSES, {})
    linears = linears_outside(model, timm_classifier(name))
    _check_tensors(name, model, linears)
    weights = sum(linear.weight.numel() for linear in linears.values())
    parameters, size = sum(p.numel() for p in model.parameters()), int(config.input_size[-1])
    counted = _macs_of_monarch(model, linears, size)
    family = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
    crop_mode = "pad" if config.crop_pct > 1 else config.crop_mode
    return TimmModel(family, size, parameters, counted, len(linears), weights, crop_mode)


def _check_tensors(name: str, model: nn.Module, linears: Mapping[str, nn.Linear]) -> None:
    if not linears:
        raise LeftOut("have no linear layer outside the classifier")
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        raise LeftOut("have weights under several names")
    built = built_on_meta(lambda: create_timm_model(name, CLASSES, {}))
    stored = built.state_dict().keys()
    if any(buffer.is_meta and key not in stored for key, buffer in built.named_buffers()):
        raise LeftOut("have a tensor that is neither stored nor computed")


def _macs_of_monarch(model: nn.Module, linears: Mapping[str, nn.Linear], size: int) -> int:
    """Run the model with Monarch layers in place of the linear ones; MACs of the dense model."""
    specs = {}
    for name, linear in linears.items():
        widths = linear.in_features, linear.out_features
        specs[name] = LayerSpec("monarch", *widths, nblocks=min(4, *widths), bias=linear.bias is not None)
    shapes: list[tuple[int, ...]] = []
    model.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape) if isinstance(out, Tensor) else ()))
    with on_meta():
        replace_linears(model, specs)
    try:
        counted = macs(model, size)
    except AttributeError:  # a structured layer has no `weight`
        raise LeftOut("read the weights of a linear layer themselves") from None
    if shapes != [(1, CLASSES)]:
        raise LeftOut("give no logits")
    if not all(counted.by_layer.get(name) for name in linears):
        raise LeftOut("read the weights of a linear layer themselves")
    return counted.dense_equivalent


def row_of(model: TimmModel) -> dict[str, Any]:
    """The JSON of a model, in which the usual crop is not said."""
    row = asdict(model)
    return {key: value for key, value in row.items() if (key, value) != ("crop_mode", "center")}


def text_of(document: Mapping[str, Any]) -> str:
    """The file's text: JSON, a model a line."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in document["models"].items())
    head, left_out = json.dumps(document["timm"]), json.dumps(document["left_out"], indent=1).replace("\n", "\n ")
    return f'{{\n "timm": {head},\n "models": {{\n{rows}\n }},\n "left_out": {left_out}\n}}\n'


def main() -> None:
    """Examine all names, and write the record of those that are served and why the others are not."""
    warnings.simplefilter("ignore")  # of timm's, about names and of what it finds on the meta device
    names, models, left_out = sorted(timm.list_models()), dict[str, Any](), Counter[str]()
    for done, name in enumerate(names, 1):
        try:
            models[name] = row_of(examine(name))
        except Exception as error:
            # Hundreds of classes that nobody here wrote: whatever one cannot do is a reason to leave it out.
            words = " ".join(str(error).split())[:100]
            left_out[words if isinstance(error, LeftOut) else f"fail: {type(error).__name__}: {words}"] += 1
        print(f"{done}/{len(names)} {name}: {models.get(name)}", file=sys.stderr, flush=True)
    OUT.write_text(text_of({"timm": timm.__version__, "models": models, "left_out": dict(left_out.most_common())}))


if __name__ == "__main__":
    main()
