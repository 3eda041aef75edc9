"""ModelLifecycle: loads and unloads models while others serve.

A model is loaded, warmed up and held against its golden images on a thread of its own; then it is put in place at once,
for whoever asks next. The one before it answers the requests that use it, and is freed: its memory comes back.
"""

import asyncio
import gc
import itertools
import logging
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ...inference.device import trim_heap
from ..config.aliases import AliasError, AliasTarget, check_alias, targets_of
from ..config.model_limits import check_named
from ..config.settings import OFF, Settings
from ..config.shadows import parse_shadows
from ..engine.engine_group import EngineGroup, Pipelines
from ..repository.index import ModelIndex
from ..repository.open import open_on_all
from ..repository.served_model import OpenModel, ServedModel
from ..repository.trial import TrialError
from ..scheduler.model_queue import ModelQueue
from ..scheduler.scheduler import Scheduler
from ..telemetry.metrics import Metrics
from .loaded_models import LoadedModels, ModelLeases
from .model_metrics import record_model

logger = logging.getLogger("milkweed.lifecycle")

END_SECONDS = 10.0
"""What a child that took its whole time may take to end."""


class ModelLifecycle:
    """Belongs to the event loop, except `open` and `publish`, which the engines' threads call.

    Args:
        loaded: the models that engines compute; engines tell it when they have removed one.
        open_model: makes a warm, verified model of a bundle.
        metrics: where the series of each model begin and end.
    """

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        engines: EngineGroup,
        loaded: LoadedModels,
        open_model: OpenModel,
        metrics: Metrics,
    ) -> None:
        self.index, self._shadows = ModelIndex(aliases=targets_of(settings.aliases)), parse_shadows(settings.shadow)
        self._settings, self._scheduler, self._engines, self._loaded = settings, scheduler, engines, loaded
        self._open_model, self._metrics = open_model, metrics
        self.failures: dict[tuple[str, str], str] = {}
        """Why a bundle of a name and number could not be served when it was last tried."""
        self._key_numbers = itertools.count(1)
        self.leases = ModelLeases(self._released)
        """Which models requests use: none of these is freed meanwhile."""
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._opener = _new_opener()

    def check_names(self, names: list[str]) -> None:
        """Check, before anything is loaded, that what settings say of models is about models that are there.

        Raises:
            AliasError: an alias hides a model or stands for none.
            ValueError: limits or heads are set for a model that is not there, or a shadow is not, or its model.
        """
        for alias, target in self.index.aliases.items():
            check_alias(alias, target, names)
        shadowed = (of for of, _ in self._shadows.values())
        of_settings = {name: getattr(self._settings, name) for name in ("model_limits", "heads")}
        for setting, named in {**of_settings, "shadow": (*self._shadows, *shadowed)}.items():
            check_named(setting, named, names, more_may_come=self._settings.repository != OFF)

    def open(self, name: str, path: Path, number: str = "", *, serving: bool = False) -> ServedModel:
        """Load a bundle, warm it up and hold it against its golden images; it serves nobody yet.

        Args:
            serving: others serve meanwhile.

        Raises:
            ValueError: (BundleError, DeviceError, TrialError) it cannot be loaded or answers wrongly.
        """
        shares, modules = self._engines.shares(self._settings.of(name)), len(sys.modules)
        self._metrics.loading.labels(name).set_to_current_time()
        try:
            model = open_on_all(self._open_model, name, path, shares, self._engines.names, serving)
        finally:
            self._metrics.loading.remove(name)
        if gc.get_freeze_count() and len(sys.modules) != modules:
            gc.freeze()  # what was imported is no garbage, and each unloading would walk it
        model = replace(model, number=number, key=f"{name}#{next(self._key_numbers)}")
        assert len(model.label_json) == model.num_classes, "made here, where nobody waits for an answer"
        return model

    def open_first(self, name: str, path: Path) -> list[ServedModel]:
        """`open` at the start; nothing where it fails and the settings allow a start without it."""
        try:
            return [self.open(name, path)]
        except ValueError as error:
            if not self._settings.start_with_failures:
                raise
            self.failed(name, "", error)
            return []

    def failed(self, name: str, number: str, error: ValueError) -> None:
        """Log, count and keep why a bundle cannot be served; what serves goes on."""
        what = f"{name}/{number}" if number else name
        logger.error("%s cannot be served, what is sound goes on: %s", what, error)
        self.failures[name, number] = str(error)
        self._metrics.load_failures.labels(name).inc()

    def forget(self, name: str, number: str) -> None:
        """Forget the failure of a bundle that is gone, and of a name without another bundle all series."""
        self.failures.pop((name, number), None)
        self._forget_series(name)

    def _forget_series(self, name: str) -> None:
        if not self.index.versions(name) and not any(name == failed for failed, _ in self.failures):
            self._metrics.forget_model(name)

    def publish(self, models: Iterable[ServedModel]) -> dict[str, Pipelines]:
        """Serve the first models, all at once, so that ready means all; on the engine thread. Raises AliasError where
        an alias stands for a version that is not there, ValueError where a shadow has other classes than its model."""
        index = self.index
        for model in models:
            index, _ = index.with_model(self._enter(model), self._settings.keep_versions, first=False)
        for alias, target in index.aliases.items():
            if not any(target.model == failed for failed, _ in self.failures):  # its model may come yet
                index.with_alias(alias, target)  # raises where it stands for nothing
        for shadow, (of, _) in self._shadows.items():
            if shadow in index and of in index:
                index[of].check_shadow(index[shadow])
        self.index = index
        return {model.key: model.pipelines for model in index.every()}

    async def load(
        self, name: str, path: Path, number: str = "", *, first: bool = True, keep: int | None = None
    ) -> ServedModel:
        """Load a bundle and put it in place; returns once it serves. What it replaces is freed afterwards.

        Args:
            first: this version answers requests that name none; else the highest number does.
            keep: how many versions of the name stay; None: as many as the settings say.

        Raises:
            ValueError: (BundleError, DeviceError, AliasError) it cannot be loaded, answers wrongly or an alias forbids
                it; what served goes on.
        """
        async with self._changing:
            logger.info("a model is being opened", extra={"event": {"model": name, "number": number}})
            model = await self._opened(name, path, number)
            try:
                index, old = self.index.with_model(model, keep or self._settings.keep_versions, first=first)
            except AliasError:
                _close(model)
                raise
            self._enter(model)
            for engine_id in model.pipelines.keys() - self._engines.add(model.key, model.pipelines):
                self._loaded.remove_engine(model.key, engine_id)  # that engine has ended meanwhile
            self.index = index
        for replaced in old:
            self._unload(replaced)
        return model

    async def _opened(self, name: str, path: Path, number: str) -> ServedModel:
        """`open` on a thread of its own, which is given up where it takes too long: no thread can be ended. Its model
        is closed if it comes after all. Raises TrialError."""
        opening = self._opener.submit(self.open, name, path, number, serving=True)
        seconds = self._settings.model_load_timeout_seconds * (1 + len(self._engines))  # a child, then every device
        opened = asyncio.wrap_future(opening)
        await asyncio.wait({opened}, timeout=seconds + END_SECONDS)
        if opened.done():
            return opened.result()
        self._opener.shutdown(wait=False)
        self._opener = _new_opener()
        opening.add_done_callback(lambda late: None if late.exception() else _close(late.result()))
        raise TrialError(f"model {name} cannot be opened: not done after {seconds:g} s")

    async def unload(self, name: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Serve a name, or one version of it, no more; returns once its memory is back. Raises ServiceError
        `unknown_model`. Raises AliasError where an alias stands for it."""
        async with self._changing:
            self.index, old = self.index.without(name, version)
        await asyncio.gather(*(asyncio.shield(self._unload(model)) for model in old))
        return old

    def set_alias(self, name: str, target: AliasTarget | None) -> AliasTarget | None:
        """Let a name stand for something else from now on, None: for nothing; what it stood for.

        A version that served only because the alias pinned it is freed afterwards.

        Raises:
            AliasError: it cannot be.
        """
        before = self.index.aliases.get(name)
        index = self.index.without_alias(name) if target is None else self.index.with_alias(name, target)
        old: tuple[ServedModel, ...] = ()
        if before is not None:
            index, old = index.trimmed(before.model, self._settings.keep_versions)
        self.index = index
        for model in old:
            self._unload(model)
        return before

    async def settled(self) -> None:
        """Wait until every model that is being unloaded is freed."""
        await asyncio.gather(*map(asyncio.shield, self._unloading.values()))

    def close(self) -> None:
        """No model comes any more."""
        self._opener.shutdown(wait=False, cancel_futures=True)

    def _enter(self, model: ServedModel) -> ServedModel:
        """Let the scheduler accept images for a model, and begin its series."""
        loaded = self._loaded.add(model, self._engines.engines)
        limits = self._settings.model_limits.get(model.name)
        max_images = None if limits is None else limits.max_queue_images
        queue = ModelQueue(model.key, self._settings.max_batch_pixels, loaded.costs, model.name, max_images)
        self._scheduler.add_model(queue)
        record_model(self._metrics, self._settings, model)
        self.failures.pop((model.name, model.number), None)
        return model

    def _unload(self, model: ServedModel) -> "asyncio.Task[None]":
        """Free a model once no request uses it; the task is done when its memory is back."""
        task = self._unloading[model.key] = asyncio.get_running_loop().create_task(self._free(model.key))
        if model.key not in self.leases:
            self._scheduler.remove_model(model.key)
        return task

    def _released(self, key: str) -> None:
        if key in self._unloading:
            self._scheduler.remove_model(key)

    async def _free(self, key: str) -> None:
        await asyncio.wrap_future(self._loaded[key].gone)
        model = self._loaded.pop(key).model
        del self._unloading[key]
        try:
            # The series end, unless the same version serves again.
            if not any(other.version == model.version for other in self.index.versions(model.name)):
                self._metrics.forget_version(model.name, model.version)
            self._forget_series(model.name)
            on_gpu = model.pipeline.device.type == "cuda"
            del model
            await asyncio.to_thread(_give_memory_back, on_gpu)
            logger.info("a model was let go", extra={"event": {"model": key}})
        except Exception:
            # Its device is lost. Whoever waits for the end must not wait for ever.
            logger.exception("a model was let go, but not all that it held", extra={"event": {"model": key}})


def _new_opener() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="milkweed-open")


def _close(model: ServedModel) -> None:
    for pipeline in model.pipelines.values():
        pipeline.close()


def _give_memory_back(on_gpu: bool) -> None:
    """Give the memory of a freed model to the system, not to a pool of ours: reloads must not add up.

    What was there when the start ended is frozen, so that the collector, which stops all threads, walks only what came
    since. Of a model that was frozen its forward's `close` has let the tensors go.
    """
    gc.collect()
    if on_gpu:
        import torch

        torch.cuda.empty_cache()
    trim_heap()
