"""Service: what is asked, what is answered, and where the time goes."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from . import objectives, variables
from .panels import IMAGES, IMAGES_A_SECOND, Panel, Query, board, figure, lines, listing, warmth
from .series import (
    ANSWERED,
    INFERENCE,
    MODEL,
    VERSION,
    mean,
    most,
    quantile,
    rate,
    series,
    share,
    total,
)
from .series import buckets as buckets_of
from .shadows import shadow_panels

HTTP = "milkweed_http_request_duration_seconds"
STAGE = "milkweed_request_stage_duration_seconds"
BATCH = "milkweed_batch_size"
STAGES = ("receive", "fetch", "parse", "queue", "decode", "ready", "forward", "postprocess", "deliver", "respond")

_IMAGES = total(rate("milkweed_images_total", MODEL))
_ANSWERED = total(rate("milkweed_images_total", MODEL, ANSWERED))
_REQUESTS = total(rate(f"{HTTP}_count", INFERENCE))
_FAILED = total(rate(f"{HTTP}_count", INFERENCE, 'code="500"'))


def dashboard() -> Dashboard:
    """The dashboard `Service`."""
    return board(
        "milkweed-service",
        "milkweed: Service",
        "What is asked, what is answered, and where the time goes.",
        [
            variables.datasource(),
            *variables.servers(),
            variables.model(),
            variables.version(),
            variables.choice("stage", "Stage", STAGES, "queue"),
        ],
        [
            ("Now", _now()),
            ("Objectives", objectives.panels()),
            ("Requests and images", _requests()),
            ("Latency", _latency()),
            ("Batches", _batches()),
            ("Queue", _queue()),
            ("Server", _server()),
            ("Models", _models()),
            ("Shadows", shadow_panels()),
        ],
    )


def _now() -> list[Panel]:
    return [
        figure("Goodput", IMAGES_A_SECOND, "Images answered within their deadline, a second.", _ANSWERED, decimals=1),
        figure(
            "Goodput of what came",
            "percentunit",
            "Share of the images that came which were answered. The rest: not decodable, refused, too late, "
            "cancelled, or failed.",
            share(_ANSWERED, _IMAGES),
        ),
        figure(
            "Failed",
            "percentunit",
            "Share of inference requests answered with 500: faults of ours, not refusals.",
            share(f"({_FAILED} or vector(0))", _REQUESTS),
            steps=[(0.0001, "orange"), (0.01, "red")],
        ),
        figure(
            "Latency p95",
            "s",
            "Of all inference requests over HTTP, refused ones too.",
            quantile(0.95, HTTP, INFERENCE),
        ),
        figure("Waiting", IMAGES, "Images in the queue.", total(series("milkweed_queue_depth_images", MODEL))),
        figure("Replicas up", "none", "Servers that Prometheus reaches.", total(series("up"))),
    ]


def _requests() -> list[Panel]:
    return [
        lines(
            "Requests by code",
            "reqps",
            "Inference requests by HTTP status; 499: the client left. Those over gRPC by their status there.",
            Query(total(rate(f"{HTTP}_count", INFERENCE), "code"), "{{code}}"),
            Query(
                total(rate("milkweed_grpc_request_duration_seconds_count", 'method="ModelInfer"'), "code"),
                "gRPC {{code}}",
            ),
            stacked=True,
        ),
        lines(
            "Errors and refusals by reason",
            "reqps",
            "Requests of any route that were answered with an error, each under one reason, and those whose client "
            "left while the body arrived (receive) or while it waited (wait).",
            Query(total(rate("milkweed_requests_rejected_total"), "reason") + " > 0", "{{reason}}"),
            Query(total(rate("milkweed_requests_cancelled_total"), "stage") + " > 0", "client left: {{stage}}"),
            stacked=True,
        ),
        lines(
            "Images by outcome",
            IMAGES_A_SECOND,
            "ok is the goodput. expired: its deadline passed in the queue. invalid: not decodable. rejected: refused "
            "at the door. cancelled: the client left. error: a fault of ours.",
            Query(total(rate("milkweed_images_total", MODEL), "outcome") + " > 0", "{{outcome}}"),
            stacked=True,
        ),
    ]


def _latency() -> list[Panel]:
    stage = "The stages of a request meet without gaps: "
    return [
        lines(
            "Latency",
            "s",
            "Inference requests over HTTP, from the headers to the last byte of the answer, refused ones too.",
            *(Query(quantile(which, HTTP, INFERENCE), f"p{which * 100:.0f}") for which in (0.5, 0.95, 0.99)),
            span=12,
        ),
        warmth(
            "Latency, all of it",
            "s",
            "The same as a heatmap: how many requests a second ended in each bucket.",
            buckets_of(HTTP, INFERENCE),
        ),
        _stacked_stages(
            "Stages, median",
            stage + "receive, fetch, parse, queue, decode, ready, forward, postprocess, deliver, "
            "respond. Medians upon each other do not add up to the median of the whole.",
            quantile(0.5, STAGE, MODEL, by="stage"),
        ),
        _stacked_stages(
            "Stages, p95",
            stage + "where the slow ones spend their time. The sum is an upper view: the same request is seldom among "
            "the slowest in every stage.",
            quantile(0.95, STAGE, MODEL, by="stage"),
        ),
        _stacked_stages(
            "Stages, mean",
            stage + "means add up, so the height is the mean of the whole for answered requests.",
            mean(STAGE, MODEL, by="stage"),
        ),
        warmth(
            "Stage $stage",
            "s",
            "Answered requests by how long they were in the stage chosen above.",
            buckets_of(STAGE, MODEL, 'stage="$stage"'),
            span=24,
        ),
    ]


def _stacked_stages(title: str, text: str, query: str) -> Panel:
    return lines(title, "s", text, Query(query, "{{stage}}"), stacked=True)


def _batches() -> list[Panel]:
    padding = total(rate("milkweed_batch_padding_images_total", MODEL), "model")
    return [
        lines(
            "Batch size",
            IMAGES,
            "Images a batch: mean and p95. A batch is what waits when the device is free.",
            Query(mean(BATCH, MODEL, by="model"), "{{model}} mean"),
            Query(quantile(0.95, BATCH, MODEL, by="model"), "{{model}} p95"),
        ),
        lines(
            "Batches by why they were not larger",
            "suffix: batches/s",
            "full: as many as fit. captured: a captured size costs less than a padded one. idle_device: no more "
            "waited. drain: the server is ending.",
            Query(total(rate("milkweed_batches_total", MODEL), "reason"), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Padding",
            "percentunit",
            "Share of the computed places that were empty, because batches are padded to fixed shapes.",
            Query(share(padding, f"({padding} + {total(rate(f'{BATCH}_sum', MODEL), 'model')})"), "{{model}}"),
            top=1,
        ),
    ]


def _queue() -> list[Panel]:
    return [
        lines(
            "Waiting",
            IMAGES,
            "Images in the queue, of all chosen servers. Beyond max_queue_images a request has 503.",
            Query(total(series("milkweed_queue_depth_images", MODEL), "model"), "{{model}}"),
            stacked=True,
        ),
        lines(
            "Age of the oldest, and predicted wait",
            "s",
            "The longest of all servers. The predicted wait is what a request that comes now is promised; it is "
            "refused where its deadline is nearer.",
            Query(most(series("milkweed_queue_oldest_age_seconds", MODEL), "model"), "{{model}} oldest"),
            Query(most(series("milkweed_queue_predicted_wait_seconds")), "predicted wait"),
        ),
        lines(
            "Bytes of requests",
            "bytes",
            "Bodies in memory, bounded by max_held_bytes of each server, and the encoded images among them that wait.",
            Query(total(series("milkweed_http_buffered_body_bytes")), "bodies"),
            Query(total(series("milkweed_queue_bytes", MODEL)), "waiting"),
        ),
    ]


def _server() -> list[Panel]:
    return [
        lines(
            "Event loop lag p99",
            "s",
            "How late the loop that speaks HTTP runs a timer; the latest of all chosen servers.",
            Query(quantile(0.99, "milkweed_event_loop_lag_seconds"), "p99"),
        ),
        lines(
            "Connections closed by the server",
            "suffix: /s",
            "For a reason of its own: too slow, too large, malformed, evicted for others, refused, not reading.",
            Query(total(rate("milkweed_http_connections_closed_total"), "reason") + " > 0", "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Open connections",
            "none",
            "Of all chosen servers; bounded by max_connections of each.",
            Query(total(series("milkweed_http_connections")), "open"),
        ),
        lines(
            "In flight",
            "suffix: requests",
            "Requests that are being answered now, by route.",
            Query(total(series("milkweed_http_requests_in_flight"), "route") + " > 0", "{{route}}"),
            stacked=True,
        ),
        lines(
            "Cores in use",
            "suffix: cores",
            "CPU of the server's process, of all chosen servers.",
            Query(total(rate("process_cpu_seconds_total")), "cores"),
        ),
        lines(
            "Open files",
            "percentunit",
            "Share of the files that a process may have open; the most of all chosen servers. A connection is a file.",
            Query(f"max({series('process_open_fds')} / {series('process_max_fds')})", "most"),
        ),
    ]


def _models() -> list[Panel]:
    columns = ("model", "version", "arch", "dtype", "device", "loader", "monarch_blocks", "instance")
    return [
        listing(
            "What is served",
            "Models and versions that answer now, and with what. monarch_blocks: 0 where no layer is a Monarch matrix.",
            series("milkweed_model_info", MODEL, VERSION),
            columns,
        ),
        lines(
            "Versions that could not be served",
            "none",
            "New versions that failed to load or answered their golden images wrongly, within the last hour; what "
            "served went on. The log says why.",
            Query(total(f"increase({series('milkweed_model_load_failures_total', MODEL)}[1h])", "model"), "{{model}}"),
        ),
    ]
