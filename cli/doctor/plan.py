"""Tells what `milkweed serve` would use with these settings, by the functions that decide it at its start."""

import errno
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
from ...kernels.installation import install_command
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
from .finding import Finding, row

_row = partial(row, "would serve")
_broken = partial(row, "would serve", text="", status="broken")

VARIABLE = "MILKWEED_QUARANTINE"


def plan_findings(settings: Settings, origins: Mapping[str, str], bundle: Path | None) -> Iterator[Finding]:
    """Make a row for each thing that is decided.

    Args:
        origins: where each setting comes from; `default` where nobody gave it.
        bundle: the bundle to serve; None serves what the repository holds.
    """
    for name in ("port", "metrics_port", "grpc_port", "admin_port"):
        if getattr(settings, name):
            yield _port(name, settings, origins[name])
    if not SANDBOXED.keys().isdisjoint(image_limits(settings).formats):
        yield _sandbox()
    if settings.repository != OFF:
        yield _repository(Path(settings.repository))
    config, macs = None, 0
    if bundle is not None:
        try:
            config, macs = _opened(bundle, settings)
            cost = f"{macs / 1e6:,.0f} million multiply-accumulates an image"
            yield _row("model", f"{bundle}: {_described(config)}, {cost}")
        except (ValueError, OSError) as error:
            yield _broken("model", fault=error, fix=f"milkweed inspect {bundle}")
    try:
        devices = resolve_devices(settings.device)
    except DeviceError as error:
        yield _broken("device", fault=f"{error} ({origins['device']})", fix="milkweed serve --device auto")
        return
    plan = _Plan(settings, origins, devices[0], config, macs)
    yield _row("device", f"{', '.join(device_names(devices))}: {plan.setting('device')}")
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
            config = self.config
            records = (None, None) if config is None else (config.graph, config.program)
            asked = (self.settings.backend, self.settings.dtype, self.device)
            candidates, refused = find_candidates(*asked, *records, weights=config is None or not config.graph_only)
            names = list(dict.fromkeys(runtime_name(candidate.backend) for candidate in candidates))
            which = names[0] if len(names) == 1 else f"{', '.join(names)}: whichever is fastest when the model loads"
            backend = _row("backend", "; ".join([f"{which}: {self.setting('backend')}", *refused.values()]))
        except BackendError as error:
            others = self.settings.backend in ("default", "auto")  # were asked as well
            fix = install_command("torch") if others else "milkweed serve --backend auto"
            backend = _broken("backend", fault=f"{error}: {self.setting('backend')}", fix=fix)
        yield self._numbers(candidates)
        yield backend
        yield self._loader()
        if self.device.type == "cuda":
            yield from self._gpu_forward()
        elif self.config is not None and candidates:
            yield from self._cpu_forward(self.config, sorted({candidate.backend for candidate in candidates}))

    def _numbers(self, candidates: Sequence[Candidate]) -> Finding:
        program = self.config.program if self.config is not None else None
        if program is not None and candidates == (Candidate("milkweed", program.precision),):
            return _row("numbers", f"{program.precision}, which the bundle was made for: {self.setting('dtype')}")
        dtypes = resolve_dtypes(self.settings.dtype, self.device)
        text = f"{' or '.join(dtypes)}: {self.setting('dtype')}"
        if len(dtypes) > 1:
            text += "; measured when the model loads, and held against its golden answers"
        fault = None
        if self.device.type == "cuda" and "float32" in dtypes:
            from ...inference.torch_forward import NO_FUSED_KERNEL

            fault = f"{text}; {NO_FUSED_KERNEL}"
        return _row("numbers", text, fault, "milkweed serve --dtype auto")

    def _loader(self) -> Finding:
        loader, why = str(self.settings.loader), self.setting("loader")
        if loader == "auto":
            loader, why = fastest("gpu" if self.device.type == "cuda" else "cpu")
        return _row("loader", f"{loader} with {self.settings.decode_threads or usable_cores()} threads: {why}")

    def _gpu_forward(self) -> Iterator[Finding]:
        from ...models.serving.fused.device_kernels import device_kernels

        kernels = device_kernels(self.device.for_torch)
        yield _row("kernels", kernels.status, kernels.refusal and kernels.status, install_command("kernels"))
        graphs = "captured for each batch size" if self.settings.cuda_graphs else "not captured (--cuda-graphs false)"
        yield _row("forward", f"whole batches, {graphs}")

    def _cpu_forward(self, config: BundleConfig, backends: Sequence[Backend]) -> Iterator[Finding]:
        if "torch" not in backends:
            kernels = " or ".join(runtime_name(backend) for backend in backends)
        elif config.structure:
            from ...models.serving.prepare import kernel_decision

            kernels = kernel_decision(self.device.for_torch)
        else:
            kernels = "PyTorch's: the model has no structured layer"
        yield _row("kernels", kernels)
        settings = self.settings
        chosen = {"micro_batch": settings.micro_batch, "lanes": settings.lanes, "threads": settings.threads_per_image}
        plan = plan_lanes(self.device, self.macs, **chosen)
        sizes = f"{plan.lanes} forwards at once, {plan.threads} threads each, {plan.micro_batch} images each"
        if "milkweed" in backends:
            threads = plan.lanes * plan.threads
            most = min(plan.most_threads or threads, threads)
            sizes = f"{threads} images at once, idle threads help: at most {most} an image"
        if "openvino" in backends and not settings.micro_batch:
            sizes += f" (OpenVINO: or {other_size(plan.micro_batch)}, where they give the same bits)"
        if "torch" in backends:
            sizes += ", recorded at start" if settings.cpu_graphs else ", not recorded (--cpu-graphs false)"
        yield _row("forward", sizes)


def _port(name: str, settings: Settings, origin: str) -> Finding:
    host_name = "admin_host" if name == "admin_port" else "host"
    host, number = getattr(settings, host_name), getattr(settings, name)
    try:
        listen(host, number).close()
    except PortError as error:
        other = number + 1000 if number < 64_000 else number - 1000
        of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)  # else no port of this address can be had
        fix = f"{option_of(name)} {other}" if of_port else f"{option_of(host_name)} 127.0.0.1"
        return _broken(name, fault=f"{error} ({origin})", fix=f"milkweed serve {fix}")
    return _row(name, f"{host}:{number} is free")


def _sandbox() -> Finding:
    """Start a process that decodes rare formats: not every kernel can confine it."""
    try:
        Child(MEMORY_BYTES, CPU_SECONDS, ANSWER_SECONDS).end()
    except LoaderError as error:
        return _broken("sandbox", fault=error, fix="milkweed serve --formats jpeg,png,webp,npy")
    return _row("sandbox", "rare formats are decoded by processes behind a filter of system calls")


def _repository(root: Path) -> Finding:
    try:
        bundles = scan(root)
    except RepositoryError as error:
        return _broken("repository", fault=error, fix=f"mkdir -p {root}")
    fault = None if bundles else f"{root} holds no bundle"
    text = f"{root}: {len(bundles)} models in {sum(map(len, bundles.values()))} versions"
    return _row("repository", text, fault, f"milkweed import CHECKPOINT {root}/NAME")


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
    fault, fix = f"{', '.join(names)}: {VARIABLE} keeps these kernels of a GPU from running", f"unset {VARIABLE}"
    finding = _row("quarantine", "", fault, fix)
    try:
        all_impls()
    except ValueError as error:
        finding = _row("quarantine", "", error, fix, "broken" if device.type == "cuda" else "warning")
    if names:
        yield finding
