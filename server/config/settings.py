"""Defines every setting of the service in one frozen object."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ...loaders.headers.info import FORMATS, OPT_IN_FORMATS, SANDBOXED
from ...loaders.headers.limits import DEFAULT_LIMITS, ImageLimits
from .aliases import read_aliases
from .compat import COMPAT
from .fetch_hosts import read_fetch_hosts
from .model_limits import ModelLimits, contradictions, read_model_limits
from .shadows import read_shadows

MIB = 1 << 20

_SIZE = TypeAdapter(ByteSize)
_FORMAT = "|".join(FORMATS + OPT_IN_FORMATS).lower()
_COMPAT = "|".join(COMPAT)


def _without_unit(value: object) -> object:
    """Turn `64MiB` or `64 MB` into a number; return any other value as it is, for the field to refuse."""
    if not isinstance(value, str) or value[-1:].isdigit():
        return value
    try:
        return int(_SIZE.validate_python(value))
    except ValidationError:
        return value


def _hosts(text: str) -> str:
    read_fetch_hosts(text)  # raises
    return text


Bytes = Annotated[int, BeforeValidator(_without_unit)]
"""A number of bytes, which may have a unit."""

LOCAL_FORMATS = ",".join(FORMATS).lower()
"""The formats of a user's own files, where no setting says otherwise."""

_REQUEST_LIMITS = ("max_queue_images", "max_images_per_request", "timeout_ms", "top_k")

OFF = "off"
"""The value of a setting that names a file, where there is no file."""


def _number(default: float, least: float, most: float, text: str) -> Any:
    """A setting that is a number from `least` to `most`."""
    return Field(default=default, ge=least, le=most, description=text)


def _named(default: str, text: str) -> Any:
    """A setting that names something: a host, a file, a folder."""
    return Field(default=default, min_length=1, description=text)


class Settings(BaseModel):
    """The settings. Where a field says `0 = auto`, the value is chosen from machine and model, and printed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = _named("127.0.0.1", "address to listen on; 0.0.0.0 for all")
    port: int = _number(8000, 0, 65535, "TCP port of the service; 0 = any free one")
    metrics_port: int = _number(8001, 0, 65535, "TCP port of /metrics alone; 0 = off")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cuda|cuda:all|(cpu|cuda:\d{1,3})(,(cpu|cuda:\d{1,3})){0,63})$",
        description="auto, cpu, cuda, cuda:N, cuda:all, or several: cuda:0,cuda:1; auto = cuda if there",
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        default="auto",
        description="numbers of the forward; auto = bfloat16 on a GPU (float16 before Ampere) and on a CPU that "
        "computes in it, unless there float32 is measured faster or the golden answers are missed; else float32",
    )
    backend: Literal["default", "torch", "milkweed", "onnxruntime", "openvino", "auto"] = Field(
        default="default",
        description="CPU: what computes the forward; default = torch, or for a bundle with a graph of its own the "
        "fastest that runs graphs; auto = the fastest one, measured at start",
    )
    loader: Literal["auto", "cpu", "dali", "pillow"] = Field(default="auto", description="what turns bytes into pixels")
    hw_decoder_load: float = _number(0.0, 0, 1, "DALI on a GPU: share of its JPEGs for the GPU's JPEG engine")
    resample: Literal["exact", "fused"] = Field(
        default="exact", description="DALI: exact = Pillow's two passes; fused = one, quicker and a little off"
    )
    dali_min_pixels: int = _number(0, 0, 10**9, "DALI: smaller images go to the cpu loader, see dali_min_batch")
    dali_min_batch: int = _number(1, 1, 4096, "DALI: a batch with so many images for it takes small ones as well")
    strict_jpeg: bool = Field(
        default=True,
        description="DALI: refuse damaged JPEGs as the other loaders do, for up to two thirds of a CPU decode",
    )
    overlap: Literal["auto", "on", "off"] = Field(
        default="auto", description="decode the next images while a forward runs; auto = where the model is on a GPU"
    )
    decode_threads: int = _number(0, 0, 256, "threads that decode; 0 = one a core")
    lanes: int = _number(0, 0, 256, "CPU: forwards at the same time; 0 = auto")
    threads_per_image: int = _number(0, 0, 256, "CPU: threads of one forward; 0 = auto: with our kernels all idle ones")
    micro_batch: int = _number(0, 0, 256, "CPU: images of one forward, always; 0 = auto")
    cpu_graphs: bool = Field(
        default=True, description="CPU: record the forward at start and run it without Python: the same bits, sooner"
    )
    fusion: Literal["auto", "off"] = Field(
        default="auto", description="CUDA: auto = blocks on our kernels; off = plain PyTorch"
    )
    tuning: Literal["auto", "off", "force"] = Field(
        default="auto",
        description="measured at start, CUDA: kernels, CPU: backends; auto = those not in the cache, off, force = all",
    )
    tuning_cache: str = _named("auto", "folder of what was measured and exported; auto = in the user's cache")
    cuda_graphs: bool = Field(default=True, description="CUDA: capture the forward at start, for each batch size")

    repository: str = _named(OFF, "folder of bundles to serve: NAME or NAME/NUMBER")
    repository_seconds: float = _number(
        0.0, 0, 86_400, "seconds between looks for what changed in the repository; 0 = never"
    )
    admin_port: int = _number(0, 0, 65535, "TCP port to load and unload models by, on admin_host alone; 0 = off")
    admin_host: str = _named("127.0.0.1", "address of admin_port")
    model_load_timeout_seconds: float = _number(
        300.0, 1, 86_400, "seconds that opening a model may take: in the child that tries it, and on each device"
    )
    start_with_failures: bool = Field(
        default=False, description="start without the models that cannot be opened, instead of not at all"
    )
    keep_versions: int = _number(1, 1, 100, "versions of a model that serve at once, the newest first")

    aliases: Annotated[dict[str, str], BeforeValidator(read_aliases)] = Field(
        default={}, description="names for models or versions of them: NAME=MODEL or NAME=MODEL@VERSION, ..."
    )
    shadow: Annotated[dict[str, str], BeforeValidator(read_shadows)] = Field(
        default={}, description="models that see a share of the images that others answer: NAME=MODEL:SHARE, ..."
    )

    heads: Annotated[dict[str, dict[str, str]], BeforeValidator(read_model_limits)] = Field(
        default={}, description="classifiers on models' embeddings: MODEL.HEAD=FILE.safetensors, ..."
    )

    max_batch_size: int = _number(0, 0, 4096, "images of one batch at most; 0 = auto")
    max_batch_pixels: int = _number(
        64_000_000, 1, 10**12, "decoded pixels of one batch at most (one image may exceed it)"
    )
    max_queue_images: int = _number(1024, 1, 1_000_000, "images that wait at most; beyond it 503")
    max_queue_pixels: int = _number(2_000_000_000, 1, 10**12, "decoded pixels that wait at most; beyond it 503")
    max_images_per_request: int = _number(256, 1, 4096, "images of one request at most; beyond it 413")
    max_body_bytes: Bytes = _number(64 * MIB, 1024, 1 << 32, "bytes of one request at most")
    max_image_bytes: Bytes = _number(20 * MIB, 1024, 1 << 31, "bytes of one image at most")
    formats: str = Field(
        default=",".join(name for name in FORMATS if name not in SANDBOXED).lower(),
        pattern=rf"^({_FORMAT})(,({_FORMAT}))*$",
        description="image formats accepted, of " + _FORMAT.replace("|", ", "),
    )
    fetch_hosts: Annotated[str, AfterValidator(_hosts)] = Field(
        default=OFF,
        description="hosts that /classify fetches images from: a.example.com,*.b.example.com; http://HOST = no TLS",
    )
    max_held_bytes: Bytes = _number(512 * MIB, 1024, 1 << 40, "bytes of all bodies in memory at most; beyond it 503")
    model_limits: Annotated[dict[str, ModelLimits], BeforeValidator(read_model_limits)] = Field(
        default={},
        description="for one model, NAME.SETTING=N, ...: max_queue_images, max_images_per_request, max_batch_size, "
        "timeout_ms, top_k",
    )
    top_k: int = _number(5, 1, 100_000, "classes in an answer that did not ask for a number")

    timeout_ms: int = _number(30_000, 1, 3_600_000, "milliseconds a request may take")
    max_timeout_ms: int = _number(300_000, 1, 3_600_000, "milliseconds X-Request-Timeout-Ms may ask for")
    keep_alive_seconds: int = _number(75, 1, 3600, "seconds an idle connection is kept")
    max_connections: int = _number(
        4096, 1, 1_000_000, "connections open at most, gRPC's too; beyond it who owes bytes for longest makes room"
    )
    max_headers: int = _number(100, 8, 10_000, "headers of one request at most; beyond it 431")
    max_header_bytes: Bytes = _number(32_768, 1024, 1 << 20, "bytes of a request's target and headers at most")
    header_timeout_ms: int = _number(10_000, 1, 3_600_000, "milliseconds a request's headers may take to arrive")
    body_timeout_ms: int = _number(15_000, 1, 3_600_000, "milliseconds a body may take, see body_min_bytes_per_second")
    body_min_bytes_per_second: Bytes = _number(16_384, 1, 1 << 40, "so many bytes of a body give it a second more")
    api_keys: str = _named(OFF, "TOML file of who may ask; off = anybody")
    cors_origins: str = Field(
        default=OFF,
        pattern=r"^(off|\*|https?://[a-z0-9.:\[\]-]+(,https?://[a-z0-9.:\[\]-]+)*)$",
        description="origins whose pages may ask from browsers: https://a.example,https://b.example; * = all",
    )
    compat: str = Field(
        default=OFF,
        pattern=rf"^(off|({_COMPAT})(,({_COMPAT}))*)$",
        description="other servers' protocols that are spoken too, of " + ", ".join(COMPAT),
    )
    page: bool = Field(default=True, description="serve a page for people at /, to try and watch the service with")
    metrics_without_key: bool = Field(
        default=False, description="with API keys: /metrics on the service's port needs none"
    )
    tls_cert: str = _named(OFF, "PEM file of the certificate chain; off = plain HTTP")
    tls_key: str = _named(OFF, "PEM file of its private key; off = in tls_cert")
    tls_client_ca: str = _named(OFF, "PEM file of who signs clients' certificates; off = none asked for")
    tls_min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="least version of TLS")
    drain_grace_seconds: float = _number(1.0, 0, 600, "seconds it still accepts after SIGTERM while it says not ready")
    drain_seconds: float = _number(30.0, 0, 3600, "seconds for requests in flight to finish")
    engine_stall_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="seconds a batch may take before /livez says dead"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least level logged")
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="of the log on stderr: auto = text on a terminal, else json"
    )
    access_log: float = _number(0.0, 0, 1, "share of requests with a log line; above 0 also all that fail by our fault")
    otlp_endpoint: str = Field(
        default=OFF,
        pattern=r"^(off|https?://\S+)$",
        description="URL of an OpenTelemetry collector for traces; off = none",
    )
    trace_sample: float = _number(0.1, 0, 1, "share of requests traced whose caller decided nothing")
    grpc_port: int = _number(0, 0, 65535, "TCP port of the Open Inference Protocol's gRPC; 0 = off")

    _of_model: dict[str, "Settings"] = PrivateAttr(default_factory=dict)

    def limits_of(self, model: str) -> dict[str, int]:
        """The limits of requests to one model: its own, or those of all."""
        limited = self.of(model)
        return {name: getattr(limited, name) for name in _REQUEST_LIMITS}

    def of(self, model: str) -> "Settings":
        """The settings for one model: with its limits in place of the service's."""
        return self._of_model.get(model, self) if self.model_limits else self

    @model_validator(mode="after")
    def _validate(self) -> "Settings":
        """Refuse limits that contradict each other at start, not at the first unlucky request."""
        if lines := list(self._contradictions()):
            raise ValueError("\n".join(lines))
        self._of_model = {name: self._with(limits) for name, limits in self.model_limits.items()}
        return self

    def _with(self, limits: ModelLimits) -> "Settings":
        limited = limits.model_dump()
        queue = limited.get("max_queue_images", self.max_queue_images)
        limited.setdefault("max_images_per_request", min(self.max_images_per_request, queue))
        return self.model_copy(update=limited)

    def _contradictions(self) -> Iterator[str]:
        for low, high, why in (
            ("max_images_per_request", "max_queue_images", ": such a request could never be admitted"),
            ("timeout_ms", "max_timeout_ms", ""),
            ("max_body_bytes", "max_held_bytes", ""),
        ):
            if getattr(self, low) > getattr(self, high):
                yield f"{low} = {getattr(self, low)} is above {high} = {getattr(self, high)}{why}"
        yield from _device_contradictions(self.device)
        if self.port and self.port == self.metrics_port:
            yield f"port and metrics_port are both {self.port}"
        for name, limits in self.model_limits.items():
            yield from contradictions(name, limits, queue=self.max_queue_images, timeout_ms=self.max_timeout_ms)
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) != OFF and self.tls_cert == OFF:
                yield f"{name} = {getattr(self, name)!r} needs tls_cert"


def image_limits(settings: Settings) -> ImageLimits:
    """The limits of one image."""
    named = settings.formats.upper().split(",")
    formats = tuple(format for format in FORMATS + OPT_IN_FORMATS if format in named)
    return replace(DEFAULT_LIMITS, max_bytes=settings.max_image_bytes, formats=formats)


def _device_contradictions(device: str) -> Iterator[str]:
    names = device.split(",")
    if len({name.partition(":")[0] for name in names}) > 1:
        yield f"device = {device!r} mixes CPU and GPUs: an answer would depend on which of them computed it"
    numbers = [int(name.removeprefix("cuda:")) for name in names if name[5:].isdigit()]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        yield f"device = {device!r} names cuda:{twice} twice"
