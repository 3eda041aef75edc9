"""Tells what `milkweed serve` would use with these settings, by the functions that decide it at its start."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...inference.backend import Backend, BackendError, Candidate, find_candidates, runtime_name
from ...inference.batch_sizes import other_size
from ...inference.device import Device, DeviceError, device_names, resolve_devices, resolve_dtypes, usable_cores
from ...inference.forward import plan_lanes
from ...loaders.errors import LoaderError
from ...loaders.headers.info import SANDBOXED
from ...loaders.sandbox.process import Child
from ...loaders.sandbox.sandbox import ANSWER_SECONDS, CPU_SECONDS, MEMORY_BYTES
from ...loaders.select import fastest
from ...models.bundle.config import BundleConfig
from ...models.bundle.reading import read_config
from ...server.config.settings import OFF, Settings, image_limits
from ...server.config.sources import option_of
from ...server.http.transport.sockets import PortError, listen
from ...server.repository.store import RepositoryError, scan
from ...server.repository.trial import try_bundle
from .finding import Finding, Status

_row = partial(Finding, "would serve")

VARIABLE = "MILKWEED_QUARANTINE"


def plan_findings(settings: Settings, origins: Mapping[str, str], bundle: Path | None) -> Iterator[Finding]:
    """Make a row for each thing that is decided.

    Args:
        origins: where each setting comes from; `default` where nobody gave it.
        bundle: the bundle to serve; None serves what the repository holds.
    """
    yield from _ports(settings, origins)
    if not SANDBOXED.keys().isdisjoint(image_limits(settings).formats):
        yield _sandbox()
    if settings.repository != OFF:
        yield _repository(Path(settings.repository))
    config, macs = None, 0
    if bundle is not None:
        try:
            config, macs = _opened(bundle, settings)
            cost = f"{macs / 1e6:,.0f} million multiply-accumulates an image"
            yield _row("model", "ok", f"{bundle}: {_described(config)}, {cost}")
        except (ValueError, OSError) as error:
            yield _row("model", "broken", str(error), f"milkweed inspect {bundle}")
    try:
        devices = resolve_devices(settings.device)
    except DeviceError as error:
        yield _row("device", "broken", f"{error} ({origins['device']})", "milkweed serve --device auto")
        return
    plan = _Plan(settings, origins, devices[0], config, macs)
    yield _row("device", "ok", f"{', '.join(device_names(devices))}: {plan.setting('device')}")
    yield from plan.findings()
    if os.environ.get(VARIABLE):
        yield from _quarantine(devices[0])


@dataclass(frozen=True)
class _Plan:
    """What computes on the first device.

    Args:
        config: of the bundle; None where none is known.
        macs: multiply-accumulates of one image.
    """

    settings: Settings
    origins: Mapping[str, str]
    device: Device
    config: BundleConfig | None
    macs: int

    def setting(self, name: str) -> str:
        """Write a setting, its value and where that comes from."""
        return f"{name} = {getattr(self.settings, name)} ({self.origins[name]})"

    def findings(self) -> Iterator[Finding]:
        """Make the rows about the number type, the backend, the loader and the forward."""
        candidates: Sequence[Candidate] = ()
        try:
            candidates, refused = self._candidates()
            names = list(dict.fromkeys(runtime_name(candidate.backend) for candidate in candidates))
            which = names[0] if len(names) == 1 else f"{', '.join(names)}: whichever is fastest when the model loads"
            backend = _row("backend", "ok", "; ".join([f"{which}: {self.setting('backend')}", *refused.values()]))
        except BackendError as error:
            backend = _row("backend", "broken", f"{error}: {self.setting('backend')}", "milkweed serve --backend auto")
        yield self._numbers(candidates)
        yield backend
        yield self._loader()
        if self.device.type == "cuda":
            yield from self._gpu_forward()
        elif self.config is not None and candidates:
            yield from self._cpu_forward(self.config, sorted({candidate.backend for candidate in candidates}))

    def _candidates(self) -> tuple[Sequence[Candidate], dict[str, str]]:
        asked = (self.settings.backend, self.settings.dtype, self.device)
        if self.config is None:
            return find_candidates(*asked)
        return find_candidates(*asked, self.config.graph, self.config.program, weights=not self.config.graph_only)

    def _numbers(self, candidates: Sequence[Candidate]) -> Finding:
        program = self.config.program if self.config is not None else None
        if program is not None and candidates == (Candidate("milkweed", program.precision),):
            text = f"{program.precision}, which the bundle was made for: {self.setting('dtype')}"
            return _row("numbers", "ok", text)
        dtypes = resolve_dtypes(self.settings.dtype, self.device)
        text = f"{' or '.join(dtypes)}: {self.setting('dtype')}"
        if len(dtypes) > 1:
            text += "; measured when the model loads, and held against its golden answers"
        if self.device.type == "cuda" and "float32" in dtypes:
            from ...inference.torch_forward import NO_FUSED_KERNEL

            return _row("numbers", "warning", f"{text}; {NO_FUSED_KERNEL}", "milkweed serve --dtype auto")
        return _row("numbers", "ok", text)

    def _loader(self) -> Finding:
        loader, why = str(self.settings.loader), self.setting("loader")
        if loader == "auto":
            loader, why = fastest("gpu" if self.device.type == "cuda" else "cpu")
        threads = self.settings.decode_threads or usable_cores()
        return _row("loader", "ok", f"{loader} with {threads} threads: {why}")

    def _gpu_forward(self) -> Iterator[Finding]:
        from ...models.serving.fused.device_kernels import device_kernels

        kernels = device_kernels(self.device.for_torch)
        usable = kernels.refusal is None
        yield _row("kernels", "ok" if usable else "warning", kernels.status, "" if usable else "make kernels")
        graphs = "captured for each batch size" if self.settings.cuda_graphs else "not captured (--cuda-graphs false)"
        yield _row("forward", "ok", f"whole batches, {graphs}")

    def _cpu_forward(self, config: BundleConfig, backends: Sequence[Backend]) -> Iterator[Finding]:
        if "torch" not in backends:
            kernels = " or ".join(runtime_name(backend) for backend in backends)
        elif config.structure:
            from ...models.serving.prepare import kernel_decision

            kernels = kernel_decision(self.device.for_torch)
        else:
            kernels = "PyTorch's: the model has no structured layer"
        yield _row("kernels", "ok", kernels)
        settings = self.settings
        chosen = {"micro_batch": settings.micro_batch, "lanes": settings.lanes, "threads": settings.threads_per_lane}
        plan = plan_lanes(self.device, self.macs, **chosen)
        sizes = f"{plan.lanes} forwards at once, {plan.threads} threads each, {plan.micro_batch} images each"
        if "openvino" in backends and not settings.micro_batch:
            sizes += f" (OpenVINO: or {other_size(plan.micro_batch)}, where they give the same bits)"
        if "torch" in backends:
            sizes += ", recorded at start" if settings.cpu_graphs else ", not recorded (--cpu-graphs false)"
        yield _row("forward", "ok", sizes)


def _ports(settings: Settings, origins: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("port", "metrics_port", "grpc_port", "admin_port"):
        host_name = "admin_host" if name == "admin_port" else "host"
        host, number = getattr(settings, host_name), getattr(settings, name)
        if not number:
            continue
        try:
            listen(host, number).close()
            yield _row(name, "ok", f"{host}:{number} is free")
        except PortError as error:
            other = number + 1000 if number < 64_000 else number - 1000
            fix = f"{option_of(name)} {other}" if _has_ports(host) else f"{option_of(host_name)} 127.0.0.1"
            yield _row(name, "broken", f"{error} ({origins[name]})", f"milkweed serve {fix}")


def _has_ports(host: str) -> bool:
    """Whether any port of an address can be opened."""
    try:
        listen(host, 0).close()
    except PortError:
        return False
    return True


def _sandbox() -> Finding:
    """Start a process that decodes rare formats: not every kernel can confine it."""
    try:
        Child(MEMORY_BYTES, CPU_SECONDS, ANSWER_SECONDS).end()
    except LoaderError as error:
        return _row("sandbox", "broken", str(error), "milkweed serve --formats jpeg,png,webp,npy")
    return _row("sandbox", "ok", "rare formats are decoded by processes behind a filter of system calls")


def _repository(root: Path) -> Finding:
    try:
        bundles = scan(root)
    except RepositoryError as error:
        return _row("repository", "broken", str(error), f"mkdir -p {root}")
    if not bundles:
        return _row("repository", "warning", f"{root} holds no bundle", f"milkweed import CHECKPOINT {root}/NAME")
    versions = sum(map(len, bundles.values()))
    return _row("repository", "ok", f"{root}: {len(bundles)} models in {versions} versions")


def _opened(bundle: Path, settings: Settings) -> tuple[BundleConfig, int]:
    """Open a bundle in a child; return what it says and its multiply-accumulates. Raises ValueError, OSError."""
    with suppress(DeviceError):  # rows of their own say it
        try_bundle(bundle.name, bundle, settings)
    config = read_config(bundle)
    record = config.graph or config.program
    if record is not None and record.counts:
        return config, record.counts["macs"]
    from ...models.accounting import macs
    from ...models.bundle.bundle import empty_model

    return config, macs(empty_model(config), int(config.preprocess["size"])).total


def _described(config: BundleConfig) -> str:
    """Say what a bundle holds."""
    form = f"{len(config.structure)} structured layers" if config.structure else "dense"
    if config.program is not None:
        form += f", {config.program.precision} for our CPU kernels"
    elif config.graph is not None:
        form += f", {config.graph.precision} graph {'alone' if config.graph_only else 'beside its weights'}"
    return f"{config.arch}, version {config.version}, {form}"


def _quarantine(device: Device) -> Iterator[Finding]:
    """Name the kernels that may not run; a name that none has fails a start on a GPU."""
    from ...kernels.impls.all import all_impls
    from ...kernels.impls.quarantine import quarantined

    names = quarantined()
    status: Status = "warning"
    text = f"{', '.join(names)}: {VARIABLE} keeps these kernels of a GPU from running"
    try:
        all_impls()
    except ValueError as error:
        status, text = "broken" if device.type == "cuda" else "warning", str(error)
    if names:
        yield _row("quarantine", status, text, f"unset {VARIABLE}")
