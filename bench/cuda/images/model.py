"""A model as it is served on the device: does it answer as in float32, what memory does it take, does that grow."""

import copy

import torch

from ....inference.device import resolve_dtype
from ....inference.forward import Forward, plan_lanes
from ....inference.open import InferenceOptions, ServingForm, prepare_model
from ....inference.pipeline import GPU_BATCH_SIZE
from ....loaders import PreprocessSpec, create_loader
from ....models import BundleConfig, default_preprocess, dense_equivalent_bytes, load_bundle, macs, resident_bytes
from ..forward import ALL, monarch_model, random_config
from ..report import at_least, at_most
from .facts import memory_used
from .subject import Finding, ImageReport, Subject

ERROR_GOAL, AGREEMENT_GOAL, WEIGHTS_GOAL = 1e-2, 0.995, 0.45

SETTLING = 10
"""One image in so many is answered before memory is looked at: what is allocated once is there by then."""

NOISE_BYTES = 2 << 20
"""A GPU gives memory in pieces of this size."""


def check_numerics(subject: Subject, report: ImageReport) -> None:
    """Logits and classes of a real model in the device's numbers, against float32 on the same pixels."""
    if subject.bundle is None:
        report.findings.append(Finding("numerics", "INFO", "not checked: needs --bundle, random weights tell nothing"))
        return
    model, config = load_bundle(subject.bundle)
    spec = PreprocessSpec.from_dict(config.preprocess)
    loader = create_loader("cpu", spec, num_threads=subject.scale.cpu_threads)
    pixels = loader.load(subject.photos).pixels.to(subject.device)
    loader.close()
    served = _served(subject, copy.deepcopy(model), config)
    dtype = resolve_dtype("auto", subject.device)
    exact = model.to(subject.device)
    with torch.inference_mode():
        wanted = torch.cat([exact(part) for part in pixels.split(GPU_BATCH_SIZE)])
        got = torch.cat([served.model(part.to(dtype)).float() for part in pixels.split(GPU_BATCH_SIZE)])
    error = float((got - wanted).norm() / wanted.norm())
    agreement = float((got.argmax(1) == wanted.argmax(1)).float().mean())
    name = f"{config.arch}, {len(pixels)} photographs"
    report.goals.append(at_most(f"numerics of {name}: relative error of the logits", ERROR_GOAL, error))
    report.goals.append(at_least(f"numerics of {name}: top-1 as in float32", AGREEMENT_GOAL, agreement))


def check_growth(subject: Subject, report: ImageReport) -> None:
    """Weights in memory beside the dense model's, and memory over many images."""
    scale = subject.scale
    arch = scale.latency_model
    model = monarch_model(arch, ALL, 4)
    dtype = resolve_dtype("auto", subject.device)
    dense = dense_equivalent_bytes(model) * dtype.itemsize // torch.float32.itemsize
    size = int(default_preprocess(arch)["size"])
    plan = plan_lanes(subject.device, macs(model, size).total)
    form = _served(subject, model, random_config(arch, model))
    weights = resident_bytes(form.model)
    name = f"memory of {arch}, Monarch {'+'.join(ALL)}: weights beside dense"
    report.goals.append(at_most(name, WEIGHTS_GOAL, weights / dense, "x"))
    forward = Forward(
        form.model, plan, device=subject.device, dtype=dtype, size=size, graph_batch_sizes=form.graph_batch_sizes
    )
    batch = min(GPU_BATCH_SIZE, scale.growth_images)
    pixels = torch.randn(batch, 3, size, size, device=subject.device)
    batches = max(2, scale.growth_images // batch)
    for _ in range(max(1, batches // SETTLING)):
        forward.run(pixels)
    subject.finish()
    before = memory_used(subject.device)
    for _ in range(batches):
        forward.run(pixels)
    subject.finish()
    grown = memory_used(subject.device) - before
    forward.close()
    value = f"{before / 1e6:.1f} MB before, {grown / 1e6:+.2f} MB"
    report.findings.append(Finding.of(f"memory over {batches * batch:,} images", grown <= NOISE_BYTES, value))
    if subject.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(subject.device) / 1e6
        report.findings.append(Finding("memory", "INFO", f"{arch}: weights {weights / 1e6:.1f} MB, peak {peak:.0f} MB"))


def _served(subject: Subject, model: torch.nn.Module, config: BundleConfig) -> ServingForm:
    dtype, size = resolve_dtype("auto", subject.device), int(config.preprocess["size"])
    return prepare_model(model, config, subject.device, dtype, size, InferenceOptions(tuning="off"))
