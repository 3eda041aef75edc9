"""Tells what `milkweed serve` would use with these settings, by the functions that decide it at its start."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...inference.backend import BackendError, Candidate, find_candidates, runtime_name
from ...inference.batch_sizes import other_size
from ...inference.device import (
    Device,
    DeviceError,
    device_names,
    resolve_devices,
    resolve_dtypes,
    usable_cores,
)
from ...inference.forward import plan_lanes
from ...loaders.errors import LoaderError
from ...loaders.headers.info import SANDBOXED
from ...loaders.sandbox.process import Child
from ...loaders.sandbox.sandbox import ANSWER_SECONDS, CPU_SECONDS, MEMORY_BYTES
from ...loaders.select import fastest
from ...models.bundle.config import BundleConfig
from ...models.bundle.graph_record import GraphRecord
from ...models.bundle.program_record import ProgramRecord
from ...models.bundle.reading import read_config
from ...server.config.settings import OFF, Settings, image_limits
from ...server.http.transport.sockets import PortError, listen
from ...server.repository.store import RepositoryError, scan
from ...server.repository.trial import try_bundle
from .finding import Finding

_row = partial(Finding, "would serve")

VARIABLE = "MILKWEED_QUARANTINE"


@dataclass(frozen=True)
class Model:
    """What a bundle says of its model.

    Args:
        macs: multiply-accumulates of one image.
        structured: how many of its layers are structured.
        graph: the record of its own graph.
        program: the record of what it has for our CPU kernels.
        weights: whether it holds weights.
    """

    arch: str
    version: str
    macs: int
    structured: int
    graph: GraphRecord | None
    program: ProgramRecord | None
    weights: bool

    @property
    def form(self) -> str:
        """What it holds, in words."""
        layers = f"{self.structured} structured layers" if self.structured else "dense"
        if self.program is not None:
            return f"{layers}, {self.program.precision} for our CPU kernels"
        if self.graph is None:
            return layers
        return f"{layers}, {self.graph.precision} graph {'beside its weights' if self.weights else 'alone'}"


def plan_findings(settings: Settings, origins: Mapping[str, str], bundle: Path | None) -> Iterator[Finding]:
    """Make a row for each thing that is decided.

    Args:
        origins: where each setting comes from; `default` where nobody gave it.
        bundle: the bundle to serve; None serves what the repository holds.
    """
    yield from _ports(settings, origins)
    yield from _sandbox(settings)
    if settings.repository != OFF:
        yield _repository(Path(settings.repository))
    model = None
    if bundle is not None:
        try:
            with suppress(DeviceError):  # rows of their own say it
                try_bundle(bundle.name, bundle, settings)
            model = _read(bundle)
            million = f"{model.macs / 1e6:,.0f} million multiply-accumulates an image"
            yield _row("model", "ok", f"{bundle}: {model.arch}, version {model.version}, {model.form}, {million}")
        except (ValueError, OSError) as error:
            yield _row("model", "broken", str(error), f"milkweed inspect {bundle}")
    try:
        devices = resolve_devices(settings.device)
    except DeviceError as error:
        yield _row("device", "broken", f"{error} ({origins['device']})", "milkweed serve --device auto")
        return
    yield _row("device", "ok", f"{', '.join(device_names(devices))}: device = {_given('device', settings, origins)}")
    yield from _backend(settings, origins, devices[0], model)
    if os.environ.get(VARIABLE):
        yield from _quarantine(devices[0])


def _sandbox(settings: Settings) -> Iterator[Finding]:
    """Start a process that decodes rare formats, where any is accepted: not every kernel can confine it."""
    if not SANDBOXED.keys().isdisjoint(image_limits(settings).formats):
        try:
            Child(MEMORY_BYTES, CPU_SECONDS, ANSWER_SECONDS).end()
            yield _row("sandbox", "ok", "rare formats are decoded by processes behind a filter of system calls")
        except LoaderError as error:
            yield _row("sandbox", "broken", str(error), "milkweed serve --formats jpeg,png,webp,npy")


def _quarantine(device: Device) -> Iterator[Finding]:
    """Name the kernels that may not run; a name that none has fails a start on a GPU."""
    from ...kernels.impls.all import all_impls
    from ...kernels.impls.quarantine import quarantined

    if not quarantined():
        return
    try:
        all_impls()
    except ValueError as error:
        yield _row("quarantine", "broken" if device.type == "cuda" else "warning", str(error), f"unset {VARIABLE}")
        return
    text = f"{', '.join(quarantined())}: {VARIABLE} keeps these kernels of a GPU from running"
    yield _row("quarantine", "warning", text, f"unset {VARIABLE}")


def _backend(settings: Settings, origins: Mapping[str, str], device: Device, model: Model | None) -> Iterator[Finding]:
    """Make the rows about the backend, the loader and the forward on the first device."""
    yield from _numbers(settings, origins, device, model)
    threads = settings.decode_threads or usable_cores()
    if settings.loader == "auto":
        loader, why = fastest("gpu" if device.type == "cuda" else "cpu")
    else:
        loader, why = settings.loader, f"loader = {_given('loader', settings, origins)}"
    yield _row("loader", "ok", f"{loader} with {threads} threads: {why}")
    if device.type == "cuda":
        from ...models.serving.fused.device_kernels import device_kernels

        status = device_kernels(device.for_torch)
        if status.refusal is None:
            yield _row("kernels", "ok", status.status)
        else:
            yield _row("kernels", "warning", status.status, "make kernels")
        graphs = "captured for each batch size" if settings.cuda_graphs else "not captured (--cuda-graphs false)"
        yield _row("forward", "ok", f"whole batches, {graphs}")
        return
    if model is not None:
        yield from _cpu_forward(settings, device, model)


def _numbers(settings: Settings, origins: Mapping[str, str], device: Device, model: Model | None) -> Iterator[Finding]:
    """Make the rows about the number type and the backend."""
    candidates, refused, error = tuple[Candidate, ...](), dict[str, str](), None
    try:
        candidates, refused = _candidates(settings, device, model)
    except BackendError as found:
        error = found
    yield _number_row(settings, origins, device, model, candidates)
    given = f"backend = {_given('backend', settings, origins)}"
    if error is not None:
        yield _row("backend", "broken", f"{error}: {given}", "milkweed serve --backend auto")
        return
    names = list(dict.fromkeys(runtime_name(each.backend) for each in candidates))
    which = names[0] if len(names) == 1 else f"{', '.join(names)}: whichever is fastest when the model loads"
    yield _row("backend", "ok", "; ".join([f"{which}: {given}", *refused.values()]))


def _number_row(
    settings: Settings,
    origins: Mapping[str, str],
    device: Device,
    model: Model | None,
    candidates: tuple[Candidate, ...],
) -> Finding:
    given = f"dtype = {_given('dtype', settings, origins)}"
    if (
        model is not None
        and model.program is not None
        and candidates == (Candidate("milkweed", model.program.precision),)
    ):
        return _row("numbers", "ok", f"{model.program.precision}, which the bundle was made for: {given}")
    dtypes = resolve_dtypes(settings.dtype, device)
    numbers = f"{' or '.join(dtypes)}: {given}"
    if len(dtypes) > 1:
        numbers += "; measured when the model loads, and held against its golden answers"
    if device.type == "cuda" and "float32" in dtypes:
        from ...inference.torch_forward import NO_FUSED_KERNEL

        return _row("numbers", "warning", f"{numbers}; {NO_FUSED_KERNEL}", "milkweed serve --dtype auto")
    return _row("numbers", "ok", numbers)


def _candidates(
    settings: Settings, device: Device, model: Model | None
) -> tuple[tuple[Candidate, ...], dict[str, str]]:
    graph, program, weights = (None, None, True) if model is None else (model.graph, model.program, model.weights)
    return find_candidates(settings.backend, settings.dtype, device, graph, program, weights=weights)


def _cpu_forward(settings: Settings, device: Device, model: Model) -> Iterator[Finding]:
    """Make the rows about the forward on a CPU."""
    try:
        names = {each.backend for each in _candidates(settings, device, model)[0]}
    except BackendError:
        return  # the row of the backend says it
    graph = "torch" not in names
    if graph:
        yield _row("kernels", "ok", " or ".join(runtime_name(name) for name in sorted(names)))
    elif model.structured:
        from ...models.serving.prepare import kernel_decision

        yield _row("kernels", "ok", kernel_decision(device.for_torch))
    else:
        yield _row("kernels", "ok", "PyTorch's: the model has no structured layer")
    chosen = {"micro_batch": settings.micro_batch, "lanes": settings.lanes, "threads": settings.threads_per_lane}
    plan = plan_lanes(device, model.macs, **chosen)
    sizes = f"{plan.lanes} forwards at once, {plan.threads} threads each, {plan.micro_batch} images each"
    if "openvino" in names and not settings.micro_batch:
        sizes += f" (OpenVINO: or {other_size(plan.micro_batch)}, where they give the same bits)"
    if not graph:
        sizes += ", recorded at start" if settings.cpu_graphs else ", not recorded (--cpu-graphs false)"
    yield _row("forward", "ok", sizes)


def _ports(settings: Settings, origins: Mapping[str, str]) -> Iterator[Finding]:
    for name, host in (
        ("port", settings.host),
        ("metrics_port", settings.host),
        ("grpc_port", settings.host),
        ("admin_port", settings.admin_host),
    ):
        number = getattr(settings, name)
        if not number:
            continue
        try:
            listen(host, number).close()
        except PortError as error:
            yield _row(name, "broken", f"{error} ({origins[name]})", f"milkweed serve {_elsewhere(name, host, number)}")
        else:
            yield _row(name, "ok", f"{host}:{number} is free")


def _elsewhere(name: str, host: str, number: int) -> str:
    """Name the option that mends a port, or the address where no port of it can be opened."""
    try:
        listen(host, 0).close()
    except PortError:
        return f"{'--admin-host' if name == 'admin_port' else '--host'} 127.0.0.1"
    return f"--{name.replace('_', '-')} {number + 1000 if number < 64_000 else number - 1000}"


def _repository(root: Path) -> Finding:
    try:
        found = scan(root)
    except RepositoryError as error:
        return _row("repository", "broken", str(error), f"mkdir -p {root}")
    if not found:
        return _row("repository", "warning", f"{root} holds no bundle", f"milkweed import CHECKPOINT {root}/NAME")
    versions = sum(map(len, found.values()))
    return _row("repository", "ok", f"{root}: {len(found)} models in {versions} versions")


def _read(path: Path) -> Model:
    """Read what is to be said of a bundle whose files `try_bundle` has verified. Raises ValueError, OSError."""
    config = read_config(path)
    record = config.graph or config.program
    cost = record.counts["macs"] if record is not None and record.counts else _macs(config)
    return Model(
        config.arch, config.version, cost, len(config.structure), config.graph, config.program, not config.graph_only
    )


def _given(name: str, settings: Settings, origins: Mapping[str, str]) -> str:
    """Write a setting's value and where it comes from."""
    return f"{getattr(settings, name)} ({origins[name]})"


def _macs(config: BundleConfig) -> int:
    from ...models.accounting import macs
    from ...models.bundle.bundle import empty_model

    return macs(empty_model(config), int(config.preprocess["size"])).total
