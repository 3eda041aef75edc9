"""The index of `milkweed.models`: every name is imported from its module when it is first used, and not before.

Each folder may import those before it, and none imports back: layers < architectures < bundle < {serving, report} <
{projection, importing, onnx} < training. The modules of this folder are below `architectures`.
"""

from typing import TYPE_CHECKING

from ..kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from .accounting import dense_equivalent_bytes as dense_equivalent_bytes
    from .accounting import layer_accounts as layer_accounts
    from .accounting import macs as macs
    from .accounting import parameter_count as parameter_count
    from .accounting import resident_bytes as resident_bytes
    from .architectures.registry import create_model as create_model
    from .architectures.registry import default_preprocess as default_preprocess
    from .architectures.registry import list_models as list_models
    from .bundle.bundle import empty_model as empty_model
    from .bundle.bundle import load_bundle as load_bundle
    from .bundle.bundle import save_bundle as save_bundle
    from .bundle.config import BundleConfig as BundleConfig
    from .bundle.labels import Label as Label
    from .bundle.labels import read_labels as read_labels
    from .bundle.reading import read_config as read_config
    from .errors import BundleError as BundleError
    from .errors import CheckpointError as CheckpointError
    from .errors import ExportError as ExportError
    from .importing import import_checkpoint as import_checkpoint
    from .importing import read_checkpoint as read_checkpoint
    from .layers.blockdiag import BlockdiagLinear as BlockdiagLinear
    from .layers.layer_spec import LayerSpec as LayerSpec
    from .layers.lowrank import LowRankLinear as LowRankLinear
    from .layers.monarch import MonarchLinear as MonarchLinear
    from .layers.pixelfly import PixelflyLinear as PixelflyLinear
    from .layers.select import layer_specs_for as layer_specs_for
    from .layers.select import replace_linears as replace_linears
    from .layers.select import select_linears as select_linears
    from .layers.structured import StructuredLinear as StructuredLinear
    from .onnx.export import export_bundle as export_bundle
    from .projection.to_dense import bundle_to_dense as bundle_to_dense

_HOMES = {
    "accounting": ("dense_equivalent_bytes", "layer_accounts", "macs", "parameter_count", "resident_bytes"),
    "architectures.registry": ("create_model", "default_preprocess", "list_models"),
    "bundle.bundle": ("empty_model", "load_bundle", "save_bundle"),
    "bundle.config": ("BundleConfig",),
    "bundle.labels": ("Label", "read_labels"),
    "bundle.reading": ("read_config",),
    "errors": ("BundleError", "CheckpointError", "ExportError"),
    "importing": ("import_checkpoint", "read_checkpoint"),
    "layers.blockdiag": ("BlockdiagLinear",),
    "layers.layer_spec": ("LayerSpec",),
    "layers.lowrank": ("LowRankLinear",),
    "layers.monarch": ("MonarchLinear",),
    "layers.pixelfly": ("PixelflyLinear",),
    "layers.select": ("layer_specs_for", "replace_linears", "select_linears"),
    "layers.structured": ("StructuredLinear",),
    "onnx.export": ("export_bundle",),
    "projection.to_dense": ("bundle_to_dense",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _HOMES)
