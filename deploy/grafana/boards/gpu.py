"""GPU and memory: who holds it, what compression saves, who decodes, and what the driver says."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from . import variables
from .panels import IMAGES, IMAGES_A_SECOND, Panel, Query, board, figure, lines
from .series import (
    DEVICE,
    ENGINE,
    ENGINE_LEGEND,
    MODEL,
    REPLICA,
    REPLICA_LEGEND,
    VERSION,
    dcgm,
    most,
    rate,
    series,
    share,
    total,
)

GPU_BYTES = "milkweed_gpu_memory_bytes"
PARAMETERS = "milkweed_model_parameter_bytes"
DECODED = "milkweed_decode_backend_images_total"
RSS = 'kind="rss"'
DCGM_LEGEND = "{{Hostname}} GPU {{gpu}} {{GPU_I_ID}}"

_FALLBACKS = most(series("milkweed_model_kernel_fallbacks", MODEL, VERSION), "model, version, kind")


def dashboard() -> Dashboard:
    """The dashboard `GPU & memory`."""
    return board(
        "milkweed-gpu",
        "milkweed: GPU & memory",
        "Who holds the memory, what compression saves, who decodes, and what the driver says.",
        [
            variables.datasource(),
            *variables.servers(),
            variables.model(),
            variables.version(),
            variables.device(),
            *variables.gpus(),
        ],
        [
            ("Now", _now()),
            ("Memory of the GPUs", _gpu_memory()),
            ("Memory of the process", _process_memory()),
            ("Models", _models()),
            ("Decoding", _decoding()),
            ("Devices", _devices()),
            ("What dcgm-exporter says", _dcgm()),
        ],
    )


def _form(form: str) -> str:
    return most(series(PARAMETERS, MODEL, VERSION, f'form="{form}"'), "model, version")


def _used(by: str = "") -> str:
    free = total(series(GPU_BYTES, DEVICE, 'kind="free"'), by)
    return f"1 - {free} / {total(series(GPU_BYTES, DEVICE), by)}"


def _now() -> list[Panel]:
    cpu_share = share(total(rate(DECODED, 'backend!="dali"')), total(rate(DECODED)))
    return [
        figure(
            "GPU memory in use",
            "percentunit",
            "By whom ever, of the chosen GPUs together. Empty on a CPU.",
            _used(),
            steps=[(0.9, "orange"), (0.95, "red")],
        ),
        figure(
            "Most of torch's tensors",
            "bytes",
            "The most that they ever held on one GPU, since the start. Empty on a CPU.",
            most(series("milkweed_gpu_memory_peak_allocated_bytes", DEVICE)),
        ),
        figure(
            "Largest server",
            "bytes",
            "Resident memory of the largest server process.",
            most(series("milkweed_process_memory_bytes", RSS)),
        ),
        figure(
            "Compression",
            "suffix: ×",
            "Bytes of the dense equivalents through those in memory as served, of the chosen models together.",
            f"sum({_form('dense_equivalent')}) / sum({_form('resident')})",
            decimals=2,
        ),
        figure(
            "Decoded on the CPU",
            "percentunit",
            "Share of the images that DALI did not decode. All of them where the loader is not dali.",
            cpu_share,
        ),
        figure(
            "Kernel fallbacks",
            "none",
            "Parts of a GPU's forward that do not run as they were meant to; /v1/models says why.",
            total(_FALLBACKS),
            steps=[(1, "orange")],
        ),
    ]


def _gpu_memory() -> list[Panel]:
    return [
        lines(
            "Who holds it",
            "bytes",
            "All memory of the chosen GPUs. torch_allocated: tensors. torch_cached: held by torch for tensors to come. "
            "unaccounted: this process beyond torch, so the CUDA context, libraries and DALI's pools. others: other "
            "processes. unattributed: instead of the last two, where NVML cannot tell them apart. Empty on a CPU.",
            Query(total(series(GPU_BYTES, DEVICE), "kind"), "{{kind}}"),
            span=12,
            stacked=True,
        ),
        lines(
            "In use by GPU",
            "percentunit",
            "Share of each GPU's memory that is not free. Empty on a CPU.",
            Query(_used(ENGINE), ENGINE_LEGEND),
            span=6,
            top=1,
        ),
        lines(
            "Most of torch's tensors",
            "bytes",
            "The most that they ever held, since the start: it grows where memory leaks. Empty on a CPU.",
            Query(most(series("milkweed_gpu_memory_peak_allocated_bytes", DEVICE), ENGINE), ENGINE_LEGEND),
            span=6,
        ),
    ]


def _process_memory() -> list[Panel]:
    return [
        lines(
            "Resident memory by server",
            "bytes",
            "RSS of the process that has the engine, and the container's limit where it has one.",
            Query(most(series("milkweed_process_memory_bytes", RSS), REPLICA), REPLICA_LEGEND),
            Query(f"min({series('milkweed_container_memory_limit_bytes')})", "smallest limit"),
        ),
        lines(
            "RSS, PSS, USS",
            "bytes",
            "Of all chosen servers: with shared pages, with a share of them, without.",
            Query(total(series("milkweed_process_memory_bytes"), "kind"), "{{kind}}"),
        ),
        lines(
            "What is held for requests",
            "bytes",
            "Bodies of requests, and the encoded images among them that wait, of all chosen servers.",
            Query(total(series("milkweed_http_buffered_body_bytes")), "bodies"),
            Query(total(series("milkweed_queue_bytes", MODEL)), "waiting"),
        ),
    ]


def _models() -> list[Panel]:
    return [
        lines(
            "Weights",
            "bytes",
            "Of one copy: the dense equivalent, in memory as served, and in the bundle.",
            Query(most(series(PARAMETERS, MODEL, VERSION), "model, version, form"), "{{model}} {{version}} {{form}}"),
            span=12,
        ),
        lines(
            "Compression",
            "suffix: ×",
            "Bytes of the dense equivalent through those in memory as served; 2 means half of the memory.",
            Query(f"{_form('dense_equivalent')} / {_form('resident')}", "{{model}} {{version}}"),
            span=6,
        ),
        lines(
            "Kernel fallbacks",
            "none",
            "Parts of a GPU's forward that do not run as they were meant to, by kind; /v1/models says why.",
            Query(_FALLBACKS, "{{model}} {{version}} {{kind}}"),
            span=6,
        ),
    ]


def _decoding() -> list[Panel]:
    return [
        lines(
            "Who decodes",
            "percentunit",
            "Share of the decoded images. With the loader dali, cpu and pillow are its fallbacks; with the loader cpu, "
            "pillow is.",
            Query(
                f"{total(rate(DECODED), 'backend')} / ignoring (backend) group_left () ({total(rate(DECODED))} > 0)",
                "{{backend}}",
            ),
            stacked=True,
            top=1,
        ),
        lines(
            "Decoded by format",
            IMAGES_A_SECOND,
            "By decoder and format.",
            Query(total(rate(DECODED), "backend, format"), "{{backend}} {{format}}"),
            stacked=True,
        ),
        lines(
            "Trouble of batching decoders",
            IMAGES_A_SECOND,
            "lost: images of batches that one bad image broke; all were decoded again. quarantined: images kept from "
            "the batching decoder because their source had broken batches.",
            Query(total(rate("milkweed_decoder_lost_batch_images_total", MODEL)), "lost"),
            Query(total(rate("milkweed_decoder_quarantined_images_total", MODEL)), "quarantined"),
        ),
    ]


def _devices() -> list[Panel]:
    return [
        lines(
            "Engine busy",
            "percentunit",
            "Share of the time that each engine was in forwards: the load of its device. Decoding that is not done "
            "ahead is not in it.",
            Query(total(rate("milkweed_engine_busy_seconds_total", DEVICE), ENGINE), ENGINE_LEGEND),
            span=12,
        ),
        lines(
            "Decoded, waiting for the device",
            IMAGES,
            "Decoded ahead of the forward: none where the device waits for the decoder.",
            Query(total(series("milkweed_engine_decoded_images", DEVICE), ENGINE), ENGINE_LEGEND),
            span=12,
        ),
    ]


def _dcgm() -> list[Panel]:
    where = " In Kubernetes the GPUs that the chosen servers were given, elsewhere all of the exporter's."
    figures = (
        (
            "GPU utilisation",
            "percent",
            "DCGM_FI_DEV_GPU_UTIL",
            "NVML's utilisation: time with any kernel running.",
            100,
        ),
        (
            "Tensor cores",
            "percentunit",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "Share of cycles in which the tensor cores were busy.",
            1,
        ),
        ("JPEG and video decoder", "percent", "DCGM_FI_DEV_DEC_UTIL", "Utilisation of the decoder engines.", 100),
        ("Memory in use", "mbytes", "DCGM_FI_DEV_FB_USED", "Of the whole GPU, by whom ever.", None),
        ("Power", "watt", "DCGM_FI_DEV_POWER_USAGE", "Power that the GPU draws.", None),
        (
            "XID",
            "none",
            "DCGM_FI_DEV_XID_ERRORS",
            "Number of the last XID error; 0: none. NVIDIA's table says which.",
            None,
        ),
    )
    return [
        lines(title, unit, text + where, Query(dcgm(name), DCGM_LEGEND), top=top)
        for title, unit, name, text, top in figures
    ]
