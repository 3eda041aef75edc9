"""A pipeline put together from a bundle and the settings."""

from dataclasses import replace

import torch
from torch import nn

from ..loaders.headers.validate import DEFAULT_LIMITS, Limits
from ..loaders.preprocess.spec import PreprocessSpec
from ..loaders.select import DEFAULT_DALI, DaliOptions, create_loader
from ..models.accounting import dense_equivalent_bytes, macs
from ..models.bundle.config import BundleConfig
from .device import resolve_device, resolve_dtype, usable_cores, use_device
from .forward import plan_lanes
from .model_form import GPU_BATCH_SIZE, ForwardOptions, prepare_model
from .pipeline import Pipeline

DEFAULT_FORWARD = ForwardOptions()


def build_pipeline(
    model: nn.Module,
    config: BundleConfig,
    *,
    device: str = "auto",
    dtype: str = "float32",
    loader: str = "auto",
    decode_threads: int = 0,
    lanes: int = 0,
    threads_per_lane: int = 0,
    micro_batch: int = 0,
    max_batch_size: int = 0,
    forward: ForwardOptions = DEFAULT_FORWARD,
    dali: DaliOptions = DEFAULT_DALI,
    limits: Limits = DEFAULT_LIMITS,
) -> Pipeline:
    """The pipeline of a bundle as `load_bundle` gives it; arguments are the settings of the same names."""
    where = resolve_device(device)
    use_device(where)
    numbers = resolve_dtype(dtype, where)
    spec = PreprocessSpec.from_dict(config.preprocess)
    cost = macs(model, spec.size).total
    dense_bytes = dense_equivalent_bytes(model) * numbers.itemsize // torch.float32.itemsize
    form = prepare_model(
        model,
        device=where,
        dtype=numbers,
        size=spec.size,
        max_batch_size=max_batch_size or GPU_BATCH_SIZE,
        options=forward,
        int8_layers=config.int8_layers,
    )
    plan = plan_lanes(where, cost, micro_batch=micro_batch, lanes=lanes, threads=threads_per_lane)
    decoder = create_loader(
        loader,
        spec,
        limits,
        num_threads=decode_threads or usable_cores(),
        device="gpu" if where.type == "cuda" else "cpu",
        device_id=where.index or 0,
        dali=replace(dali, dtype=numbers, max_batch=max_batch_size or GPU_BATCH_SIZE),
    )
    try:
        return Pipeline(
            form.model,
            num_classes=config.num_classes,
            size=spec.size,
            loader=decoder,
            plan=plan,
            device=where,
            dtype=numbers,
            dense_bytes=dense_bytes,
            fusion=form.report,
            graph_batch_sizes=form.graph_batch_sizes,
            cpu_graphs=forward.cpu_graphs,
            max_batch_size=max_batch_size,
        )
    except BaseException:  # no memory on the device: the decoder has threads already
        decoder.close()
        raise
