"""Capacity: how full each replica is, what the autoscaler sees, and what an image costs."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from . import variables
from .panels import IMAGES_A_SECOND, Panel, Query, board, figure, lines
from .series import (
    ANSWERED,
    DEVICE,
    ENGINE,
    ENGINE_LEGEND,
    INFERENCE,
    REPLICA,
    REPLICA_LEGEND,
    quantile,
    rate,
    series,
    share,
    total,
)

STAGE = "milkweed_request_stage_duration_seconds"
REQUEST = "milkweed_http_request_duration_seconds"
SECONDS_AN_HOUR = 3600
A_MILLION = 1_000_000
# The thresholds of the ScaledObject, as what the dashboard begins with.
QUEUE_WAIT_SECONDS = "0.16"
IN_FLIGHT_REQUESTS = "2.5"

_REPLICAS = f"count({series('milkweed_build_info')})"
_IMAGES = total(rate("milkweed_images_total", ANSWERED))
_BUSY = f"avg({rate('milkweed_engine_busy_seconds_total', DEVICE)})"
_QUEUE_WAIT = quantile(0.95, STAGE, 'stage="queue"')
# The seconds that requests take, a second: how many there are at any time (Little's law).
_IN_FLIGHT = total(rate(f"{REQUEST}_sum", INFERENCE))
_COST = f"$price_per_hour * {_REPLICAS} / ({_IMAGES} > 0) * {A_MILLION} / {SECONDS_AN_HOUR}"


def dashboard() -> Dashboard:
    """The dashboard `Capacity`."""
    return board(
        "milkweed-capacity",
        "milkweed: Capacity",
        "How full each replica is, what the autoscaler sees, and what an image costs.",
        [
            variables.datasource(),
            *variables.servers(),
            variables.device(),
            variables.number("price_per_hour", "Price per hour", "Of one replica, in any currency.", "1"),
            variables.number(
                "target_queue_wait",
                "Target queue wait (s)",
                "Threshold of the autoscaler, seconds.",
                QUEUE_WAIT_SECONDS,
            ),
            variables.number(
                "target_in_flight",
                "Target in flight",
                "Threshold of the autoscaler, requests a replica.",
                IN_FLIGHT_REQUESTS,
            ),
        ],
        [
            ("Now", _now()),
            ("Replicas", _replicas()),
            ("Autoscaling", _autoscaling()),
            ("Cost", _cost()),
            ("Health", _health()),
        ],
    )


def _now() -> list[Panel]:
    return [
        figure("Replicas up", "none", "Servers that Prometheus reaches.", total(series("up"))),
        figure("Goodput", IMAGES_A_SECOND, "Images answered within their deadline, a second.", _IMAGES, decimals=1),
        figure(
            "Engines busy",
            "percentunit",
            "Share of the time that the engines were in forwards, the mean of all. Decoding that is not done ahead, as "
            "on a CPU, is not in it.",
            _BUSY,
            steps=[(0.8, "orange"), (0.95, "red")],
        ),
        figure("Queue wait p95", "s", "Of answered requests: the time before their batch began.", _QUEUE_WAIT),
        figure("In flight", "suffix: requests", "Inference requests that are being answered, their mean.", _IN_FLIGHT),
        figure(
            "Cost of a million images",
            "short",
            "What the replicas cost while they answer a million images at the present rate, in the "
            "currency of the price.",
            _COST,
            decimals=2,
        ),
    ]


def _replicas() -> list[Panel]:
    return [
        lines(
            "Engines busy",
            "percentunit",
            "Saturation: share of the time that a replica's engines worked on batches, the mean of its devices. "
            "Decoding counts where the same thread does it, as on a CPU.",
            Query(f"avg by ({REPLICA}) ({rate('milkweed_engine_busy_seconds_total', DEVICE)})", REPLICA_LEGEND),
        ),
        lines(
            "Images a second",
            IMAGES_A_SECOND,
            "Images that each replica answered. At full load this is what one replica can do.",
            Query(total(rate("milkweed_images_total", ANSWERED), REPLICA), REPLICA_LEGEND),
        ),
        lines(
            "Queue wait p95",
            "s",
            "Of each replica's answered requests: one that is far above the others gets too much, or is slow.",
            Query(quantile(0.95, STAGE, 'stage="queue"', by=REPLICA), REPLICA_LEGEND),
        ),
    ]


def _autoscaling() -> list[Panel]:
    return [
        lines(
            "Queue wait p95 against its target",
            "s",
            "The second signal: 95 of 100 answered requests waited less than this for their batch.",
            Query(_QUEUE_WAIT, "queue wait p95"),
            Query("vector($target_queue_wait)", "target"),
            dashed="target",
        ),
        lines(
            "In flight a replica against its target",
            "suffix: requests",
            "The first signal: inference requests that are being answered, their mean, through the number of replicas.",
            Query(f"{_IN_FLIGHT} / {_REPLICAS}", "in flight"),
            Query("vector($target_in_flight)", "target"),
            dashed="target",
        ),
        lines(
            "Replicas that the signals ask for",
            "none",
            "The autoscaler's formula at each moment: replicas now, times signal through target, rounded up. It takes "
            "the larger, within its bounds, and is slow to go down.",
            Query(_REPLICAS, "now"),
            Query(f"ceil({_REPLICAS} * {_QUEUE_WAIT} / $target_queue_wait)", "by queue wait"),
            Query(f"ceil({_IN_FLIGHT} / $target_in_flight)", "by in flight"),
        ),
    ]


def _cost() -> list[Panel]:
    process = total(rate("process_cpu_seconds_total"))
    stages = total(rate("milkweed_stage_cpu_seconds_total"), "stage")
    return [
        lines(
            "Cost of a million images",
            "short",
            "In the currency of the price. now: at the present rate. were all engines busy: the same divided by how "
            "busy they are, a straight line drawn from the present load.",
            Query(_COST, "now"),
            Query(f"{_COST} * {_BUSY}", "were all engines busy"),
        ),
        lines(
            "CPU of an image, by stage",
            "s",
            "CPU seconds of decoding, forward and postprocessing for each answered image, over all threads.",
            Query(f"{stages} / ignoring (stage) group_left () ({_IMAGES} > 0)", "{{stage}}"),
            stacked=True,
        ),
        lines(
            "CPU of an image, all of it",
            "s",
            "CPU seconds of the whole server for each answered image.",
            Query(share(process, _IMAGES), "CPU"),
        ),
    ]


def _health() -> list[Panel]:
    return [
        lines(
            "Replicas",
            "none",
            "Those that Prometheus knows, those that it reaches, and those whose models are loaded.",
            Query(f"count({series('up')})", "known"),
            Query(total(series("up")), "up"),
            Query(f"count(min by ({REPLICA}) ({series('milkweed_model_ready')}) == 1)", "ready"),
        ),
        lines(
            "Restarts within an hour",
            "none",
            "server: times that a process under the same address began anew. engine thread: times that one was ended "
            "and begun again inside of a process.",
            Query(
                f"sum by ({REPLICA}) (changes({series('process_start_time_seconds')}[1h]))", f"{REPLICA_LEGEND} server"
            ),
            Query(
                f"sum by ({REPLICA}) (increase({series('milkweed_engine_restarts_total', DEVICE)}[1h]))",
                f"{REPLICA_LEGEND} engine thread",
            ),
        ),
        lines(
            "Age of the engines' heartbeat",
            "s",
            "Time since each engine's last sign of life; one that idles is always alive. Beyond engine_stall_seconds "
            "/livez says dead.",
            Query(
                f"time() - min by ({ENGINE}) ({series('milkweed_engine_heartbeat_timestamp_seconds', DEVICE)})",
                ENGINE_LEGEND,
            ),
        ),
    ]
