"""Rollout: brings models in and takes them out while others serve.

A model is loaded, warmed up and held against its golden images on a thread of its own; then it is put in place at once,
for whoever asks next. The one before it answers those who have it in hand, and is let go: its memory comes back.
"""

import asyncio
import gc
import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from ..config.aliases import AliasError, AliasTarget, check_alias, targets_of
from ..config.model_limits import check_limited
from ..config.settings import OFF, Settings
from ..engine.engine_group import EngineGroup, Pipelines
from ..repository.index import ModelIndex
from ..repository.leases import ModelLeases
from ..repository.model_info import ModelInfo
from ..repository.open import open_on_all
from ..repository.served_model import OpenModel, ServedModel
from ..scheduler.cost_model import CostModel
from ..scheduler.scheduler import Scheduler
from ..telemetry.memory import trim_heap

logger = logging.getLogger("milkweed.rollout")


class ModelLifecycle:
    """Belongs to the event loop, `open`, `publish` and `removed` excepted, which the engines' threads call.

    Args:
        open_model: makes a warm, verified model of a bundle.
        introduce, forget: the books: called for each model that begins and ends to serve.
    """

    def __init__(
        self,
        settings: Settings,
        batcher: Scheduler,
        *,
        open_model: OpenModel,
        introduce: Callable[[ServedModel], None],
        forget: Callable[[ServedModel], None],
    ) -> None:
        self.catalogue = ModelIndex[ServedModel](aliases=targets_of(settings.aliases))
        self.costs: dict[str, list[CostModel]] = {}  # on each engine
        self._settings, self._batcher, self._open_model = settings, batcher, open_model
        self._introduce, self._forget = introduce, forget
        self._engines: EngineGroup | None = None
        self._by_key: dict[str, ServedModel] = {}
        self._numbers = itertools.count(1)
        self._in_hand = ModelLeases(self._left)
        self._retired: dict[str, asyncio.Future[None]] = {}
        self._holders: dict[str, set[int]] = {}  # engines that have a pipeline of the model
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="milkweed-open")

    def serve_on(self, engines: EngineGroup) -> None:
        """Say which engines compute."""
        self._engines = engines

    def by_key(self, key: str) -> ServedModel:
        """The model that the queue and the engine know by that key, also one that is on its way out."""
        return self._by_key[key]

    def check_names(self, names: list[str]) -> None:
        """Before anything is loaded: what settings say of models must be about models that are there.

        Raises:
            AliasError: an alias hides a model or stands for none.
            ValueError: limits are set for a model that is not there.
        """
        for alias, target in self.catalogue.aliases.items():
            check_alias(alias, target, names)
        check_limited(self._settings.model_limits, names, more_may_come=self._settings.repository != OFF)

    def open(self, name: str, path: Path, number: str = "") -> ServedModel:
        """Load a bundle, warm it up and hold it against its golden images; it serves nobody yet.

        Raises:
            ValueError: (BundleError, DeviceError) it cannot be loaded or answers wrongly.
        """
        assert self._engines is not None
        settings = self._settings.of(name)
        places = list(self._engines.going())
        model = open_on_all(
            self._open_model,
            name,
            path,
            {place: self._engines.share_of(settings, place) for place in places},
            {place: self._engines.names[place] for place in places},
        )
        return replace(model, number=number, key=f"{name}#{next(self._numbers)}")

    def publish(self, models: Iterable[ServedModel]) -> dict[str, Pipelines]:
        """At the start, on the engine thread: in place together, so that ready means all.

        Raises:
            AliasError: an alias stands for a version that is not there.
        """
        catalogue = self.catalogue
        for model in models:
            catalogue, _ = catalogue.with_model(self._enter(model), self._settings.keep_versions, first=False)
        for alias, target in catalogue.aliases.items():
            catalogue.with_alias(alias, target)  # raises where it stands for nothing
        self.catalogue = catalogue
        return {model.key: model.replicas for model in catalogue.every()}

    def using(self, model: ModelInfo) -> AbstractContextManager[None]:
        """A model that is in a request's hands is not let go."""
        return self._in_hand.of(model.key)

    def _left(self, key: str) -> None:
        if key in self._retired:
            self._batcher.remove_model(key)

    async def bring_in(
        self, name: str, path: Path, number: str = "", *, first: bool = True, keep: int | None = None
    ) -> ServedModel:
        """Load a bundle and put it in place; returns once it serves. What it replaces is let go behind.

        Args:
            first: it answers who asks for no version; else the highest number does.
            keep: versions of the name that stay, where not as many as the settings say.

        Raises:
            ValueError: (BundleError, DeviceError, AliasError) it cannot be loaded, answers wrongly or an alias forbids
                it; what served goes on.
        """
        loop = asyncio.get_running_loop()
        async with self._turn:
            model = await loop.run_in_executor(self._opener, self.open, name, path, number)
            try:
                catalogue, old = self.catalogue.with_model(model, keep or self._settings.keep_versions, first=first)
            except AliasError:
                for pipeline in model.pipelines:
                    pipeline.close()
                raise
            self._enter(model)
            assert self._engines is not None
            for place in model.replicas.keys() - self._engines.add(model.key, model.replicas):
                self.removed(model.key, place)  # that engine has ended meanwhile
            self.catalogue = catalogue
        for each in old:
            self._retire(each)
        return model

    async def take_out(self, name: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Serve a name, or one version of it, no more; returns once their memory is back.

        Raises:
            ServiceError: `unknown_model`.
            AliasError: an alias stands for it.
        """
        async with self._turn:
            self.catalogue, old = self.catalogue.without(name, version)
        await asyncio.gather(*(self._retire(each) for each in old))
        return old

    def set_alias(self, name: str, target: AliasTarget | None) -> AliasTarget | None:
        """Let a name stand for something else from now on, None: for nothing; what it stood for.

        A version that served only because the alias pinned it is let go behind.

        Raises:
            AliasError: it cannot be.
        """
        before = self.catalogue.aliases.get(name)
        catalogue = self.catalogue.without_alias(name) if target is None else self.catalogue.with_alias(name, target)
        old: tuple[ServedModel, ...] = ()
        if before is not None:
            catalogue, old = catalogue.trimmed(before.model, self._settings.keep_versions)
        self.catalogue = catalogue
        for each in old:
            self._retire(each)
        return before

    async def settled(self) -> None:
        """Wait until every model that is on its way out has gone."""
        await asyncio.gather(*self._retired.values())

    def removed(self, key: str, place: int) -> None:
        """On an engine's thread: its last batch of a model is done, its pipeline closed. Gone is what is so on all."""
        with self._lock:
            self._holders[key].discard(place)
            future = None if self._holders[key] else self._retired.get(key)
        if future is not None and not future.get_loop().is_closed():
            future.get_loop().call_soon_threadsafe(self._let_go, key, future)

    def close(self) -> None:
        """No model comes any more."""
        self._opener.shutdown(wait=False, cancel_futures=True)

    def _enter(self, model: ServedModel) -> ServedModel:
        assert self._engines is not None
        self._by_key[model.key] = model
        self._holders[model.key] = set(model.replicas)
        costs = self.costs[model.key] = [
            model.batch_costs(place, overlapped=engine.overlap) for place, engine in enumerate(self._engines.each)
        ]
        own = self._settings.model_limits.get(model.name)
        self._batcher.add_model(
            model.key,
            label=model.name,
            max_batch_pixels=self._settings.max_batch_pixels,
            costs=costs,
            max_images=None if own is None else own.max_queue_images,
        )
        self._introduce(model)
        return model

    def _retire(self, model: ServedModel) -> "asyncio.Future[None]":
        """Let a model go once nobody has it in hand; resolved when its memory is back."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            self._retired[model.key] = future
            if not self._holders[model.key]:  # its engines have ended
                loop.call_soon(self._let_go, model.key, future)
        if model.key not in self._in_hand:
            self._batcher.remove_model(model.key)
        return future

    def _let_go(self, key: str, future: "asyncio.Future[None]") -> None:
        model = self._by_key.pop(key)
        with self._lock:
            del self.costs[key], self._retired[key], self._holders[key]
        try:
            self._forget(model)
            on_gpu = model.pipeline.device.type == "cuda"
            del model
            _give_memory_back(on_gpu)
            logger.info("a model was let go", extra={"event": {"model": key}})
        except Exception:
            # Of a device that is lost. Whoever waits for the end holds the turn, and must not wait for ever.
            logger.exception("a model was let go, but not all that it held", extra={"event": {"model": key}})
        if not future.done():
            future.set_result(None)


def _give_memory_back(on_gpu: bool) -> None:
    """What the model held goes to the system, not to a pool of ours: reloads must not add up."""
    frozen = gc.get_freeze_count()  # what is frozen is not looked at: the old model may be among it
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
    if on_gpu:
        torch.cuda.empty_cache()
    trim_heap()
