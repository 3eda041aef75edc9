"""Opening a model on every device, one after the other, each held against its golden images there; the first models
several at once, where none disturbs another."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...inference.device import DeviceError, resolve_devices, usable_cores
from ...models.bundle.program_record import OPERATORS
from ...models.bundle.strict_json import canonical_json
from ...models.programs.session import kernels_refusal
from ..config.settings import Settings
from .served_model import OpenModel, ServedModel
from .trial import is_ours

logger = logging.getLogger("milkweed.opening")

MOST_AT_ONCE = 4
"""More threads would wait for Python, which runs one of them at a time."""


@contextmanager
def opening(paths: Iterable[Path], settings: Settings) -> Iterator[Callable[..., Iterable[Any]]]:
    """What calls a function for each of some models, as `map` does: by several threads where all are programs for our
    CPU kernels. Else in turns, on this thread: PyTorch's captures, and measurements that choose a backend, must not be
    disturbed. No call begins after one has failed.

    Args:
        paths: the bundles of all of the models.
    """
    programs = settings.backend in ("default", "auto", "milkweed") and settings.dtype == "auto"
    programs = programs and [device.type for device in resolve_devices(settings.device)] == ["cpu"]
    if programs and kernels_refusal() is None and all((path / OPERATORS).is_file() for path in paths):
        with ThreadPoolExecutor(min(usable_cores(), MOST_AT_ONCE), thread_name_prefix="milkweed-open") as opener:
            yield opener.map
    else:
        yield map


def open_on_all(
    open_model: OpenModel,
    name: str,
    path: Path,
    settings: Mapping[int, Settings],
    devices: Sequence[str],
    serving: bool = False,
) -> ServedModel:
    """A model with a pipeline for each engine.

    In sequence: kernels are measured while a GPU's model is opened, which must not be disturbed, and what was found for
    the first GPU is there for the next of its kind.

    Args:
        settings: what to open it with, by engine_id.
        devices: names of all devices, in the order of their engine_ids.
        serving: other models serve meanwhile.

    Raises:
        ValueError: (BundleError, DeviceError) it cannot be opened, whatever was raised: one line in words of ours,
            which begins with the device's name where there are several. What another library says is in the log alone,
            with its traceback. Nothing stays open.
    """
    if not settings:
        raise DeviceError(f"model {name} cannot be opened: every engine has ended")
    opened: dict[int, ServedModel] = {}
    try:
        for engine_id, share in settings.items():
            tried = {"serving": True} if serving and not opened else {}  # by a child once, for all engines
            if opened:  # measured once: answers must not depend on who computed them
                share = share.model_copy(update=_chosen(next(iter(opened.values()))))
            where = f"device {devices[engine_id]}: " if len(settings) > 1 else ""
            opened[engine_id] = _open(partial(open_model, name, path, share, **tried), name, where)
        return _joined(opened, devices)
    except BaseException:
        for model in opened.values():
            with suppress(Exception):
                model.pipeline.close()
        raise


def _joined(opened: Mapping[int, ServedModel], devices: Sequence[str]) -> ServedModel:
    """One model of those that were opened, by engine_id. Raises DeviceError where their answers would differ."""
    models = list(opened.values())
    model = models[0]
    canonical_json(model.describe())  # raises here what would fail /v1/models for all
    if any(other.version != model.version for other in models):
        raise DeviceError(f"model {model.name}: its bundle was replaced while it was opened")
    if len({other.dtype for other in models}) > 1:
        what = ", ".join(f"{devices[engine_id]} in {other.dtype}" for engine_id, other in opened.items())
        raise DeviceError(f"model {model.name} would be computed {what}: set --dtype, so that answers are the same")
    return replace(
        model,
        pipelines={engine_id: other.pipeline for engine_id, other in opened.items()},
        devices=tuple(devices[engine_id] for engine_id in opened),
        load_seconds=sum(other.load_seconds for other in models),
        warmup_seconds=sum(other.warmup_seconds for other in models),
    )


def _chosen(first: ServedModel) -> dict[str, str]:
    """The settings that the first device's measurement decides for the others; a GPU decides for itself alone."""
    chosen = {"backend": first.pipeline.backend.name}
    return chosen | ({"dtype": first.dtype} if first.pipeline.device.type == "cpu" else {})


def _open(call: Callable[[], ServedModel], name: str, where: str) -> ServedModel:
    try:
        return call()
    except Exception as error:
        if is_ours(error):
            if not where:
                raise
            raise DeviceError(f"{where}{error}") from error
        logger.exception("%smodel %s cannot be opened", where, name)
        raise DeviceError(f"{where}model {name} cannot be opened: an unexpected error, the log has it") from error
