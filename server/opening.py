"""Opening a model on every device, one after the other, each held against its golden images there."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from .device import DeviceError
from .served import OpenModel, ServedModel
from .settings import Settings

logger = logging.getLogger("milkweed.opening")


def open_on_all(
    open_model: OpenModel, name: str, path: Path, settings: Mapping[int, Settings], devices: Mapping[int, str]
) -> ServedModel:
    """A model with a pipeline for each engine.

    In sequence: kernels are measured while a GPU's model is opened, which must not be disturbed, and what was found for
    the first GPU is there for the next of its kind.

    Args:
        settings, devices: what to open it with and what the device is called, by the engine's place.

    Raises:
        ValueError: (BundleError, DeviceError) it cannot be loaded or answers wrongly; where there are several devices,
            the line begins with the one's name. Nothing stays open.
    """
    opened: dict[int, ServedModel] = {}
    try:
        for place, own in settings.items():
            if opened:  # measured once: answers must not depend on who computed them
                first = next(iter(opened.values()))
                own = own.model_copy(update={"engine": first.pipeline.engine.name})
            opened[place] = (
                open_model(name, path, own)
                if len(settings) == 1
                else _open(open_model, name, path, own, devices[place])
            )
        model = next(iter(opened.values()))
        dtypes = {devices[place]: each.dtype for place, each in opened.items()}
        if len(set(dtypes.values())) > 1:
            what = ", ".join(f"{device} in {dtype}" for device, dtype in dtypes.items())
            raise DeviceError(f"model {name} would be computed {what}: set --dtype, so that answers are the same")
    except BaseException:
        for each in opened.values():
            with suppress(Exception):
                each.pipeline.close()
        raise
    return replace(
        model,
        replicas={place: each.pipeline for place, each in opened.items()},
        devices=tuple(devices[place] for place in opened),
        load_seconds=sum(each.load_seconds for each in opened.values()),
        warmup_seconds=sum(each.warmup_seconds for each in opened.values()),
    )


def _open(open_model: OpenModel, name: str, path: Path, settings: Settings, device: str) -> ServedModel:
    try:
        return open_model(name, path, settings)
    except (ValueError, OSError) as error:
        raise DeviceError(f"device {device}: {error}") from error
    except Exception as error:
        logger.exception("model %s could not be opened on %s", name, device)
        first = str(error).partition("\n")[0]
        raise DeviceError(f"device {device}: model {name} cannot be opened: {type(error).__name__}: {first}") from error
