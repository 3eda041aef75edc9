"""RepositoryPoller: keeps what is served as the repository has it: at the start, from time to time, or when told to.

A folder that is being written, renamed or mounted shows for a moment what is not so. Looks from time to time therefore
act on what two of them, one after the other, have seen alike; a poll that somebody asks for acts at once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from ...loaders.errors import without_frames
from ..config.aliases import AliasError
from ..config.settings import Settings
from ..errors import ServiceError
from ..http.parser_threads import start_thread
from ..repository.served_model import ServedModel
from ..repository.store import RepositoryError, StoredBundle, by_name, newest, scan
from .lifecycle import ModelLifecycle

logger = logging.getLogger("milkweed.watch")

Key = tuple[str, str]
"""Name and number."""


class RepositoryPoller:
    """Belongs to the event loop.

    Args:
        settings: they name the repository.
    """

    def __init__(self, settings: Settings, lifecycle: ModelLifecycle) -> None:
        self.root, self._lifecycle, self._keep = Path(settings.repository), lifecycle, settings.keep_versions
        self._start_with_failures = settings.start_with_failures
        self._seen: dict[Key, StoredBundle] = {}  # in the poll before
        self._served: dict[Key, StoredBundle] = {}
        self._bad: dict[Key, StoredBundle] = {}  # not tried again until they change
        self._held: set[Key] = set()  # unwanted, but an alias stands for them
        self._task: asyncio.Task[None] | None = None
        self._turn, self._reading = asyncio.Lock(), asyncio.Lock()

    def first_poll(self, served: Iterable[str]) -> dict[str, list[StoredBundle]]:
        """What there is at the start, by name, newest first; on the engine thread, before anything else is asked of it.
        `served`: names that are served from elsewhere. Raises RepositoryError where it cannot be read, or has one of
        these."""
        stored = scan(self.root)
        for name in served:
            if name in stored:
                raise RepositoryError(f"repository {self.root}: a model called {name} is served already")
        self._seen = _by_key(stored)
        return stored

    def open_first(
        self, stored: Mapping[str, list[StoredBundle]], calls: Callable[..., Iterable[list[ServedModel]]] = map
    ) -> list[ServedModel]:
        """The versions of each name to serve from the start; on the engine thread.

        A version that cannot be served leaves its place to the one before: a pod that is started again must not be lost
        to a version that a running one refuses.

        Args:
            calls: opens the models of each name, as `map` does.

        Raises:
            ValueError: (BundleError, DeviceError, TrialError) of a name whose versions all fail; of the newest.
        """
        return [model for opened in calls(self._open_newest, stored, stored.values()) for model in opened]

    def _open_newest(self, name: str, versions: list[StoredBundle]) -> list[ServedModel]:
        pins = self._lifecycle.index.pins(name)
        opened: list[ServedModel] = []
        errors: list[ValueError] = []
        for bundle in versions:
            if len(opened) >= self._keep and bundle.number not in pins:
                continue
            try:
                opened.append(self._lifecycle.open(name, bundle.path, bundle.number))
            except ValueError as error:
                self._refuse(bundle, error)
                errors.append(without_frames(error))  # which hold memory that the version before needs
            else:
                self._served[name, bundle.number] = bundle
        if errors and not opened and not self._start_with_failures:
            raise errors[0]
        return opened[::-1]  # so that the newest comes in last

    def start(self, seconds: float) -> None:
        """Look every so many seconds."""
        self._task = asyncio.get_running_loop().create_task(self._poll_forever(seconds))

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def scan(self) -> dict[str, list[StoredBundle]]:
        """Read what the repository has; where it hangs, others wait on the event loop. Raises RepositoryError."""
        async with self._reading:
            return await asyncio.shield(start_thread(partial(scan, self.root), "milkweed-scan"))

    async def poll(self, *, twice: bool = False) -> list[str]:
        """Serve what is new or changed, and no longer what is gone; what was done, in lines. Failures are logged.

        Args:
            twice: only what the poll before has seen like this one; all else stays as it serves.

        Raises:
            RepositoryError: it cannot be read, or has no bundle left while some of it serve. That looks
                like a volume that is not mounted; whoever wanted it would unload them by name.
        """
        async with self._turn:
            self._forget_dropped()
            now, before = _by_key(await self.scan()), self._seen
            self._seen = now
            if self._served and not now:
                raise RepositoryError(f"repository {self.root}: no bundle is left in it, {len(self._served)} serve")
            there = self._settled(now, before) if twice else now
            chosen = newest(by_name(there.values()), self._keep, self._lifecycle.index.pins)
            done = []
            for name, versions in chosen.items():
                gone = [number for served, number in self._served if served == name and (name, number) not in there]
                for bundle in versions:
                    key = bundle.name, bundle.number
                    if self._served.get(key) != bundle and self._bad.get(key) != bundle:
                        # Beside higher numbers that go in a moment, an older one must not be one too many.
                        above = sum(int(number or 0) > int(bundle.number or 0) for number in gone)
                        done += await self._load(bundle, self._keep + above)
                done += await self._unload(name, self._to_serve(name, versions))
            for name in {name for name, _ in self._served} - set(chosen):
                done += await self._unload(name, set())
            for key in self._bad.keys() - now.keys() - before.keys():
                del self._bad[key]
                self._lifecycle.forget(*key)
            return done

    def _settled(self, now: Mapping[Key, StoredBundle], before: Mapping[Key, StoredBundle]) -> dict[Key, StoredBundle]:
        """What two polls have seen alike, and of all else what serves."""
        settled = {}
        for key in {**before, **now}:
            bundle = now[key] if now.get(key) == before.get(key) else self._served.get(key)
            if bundle is not None:
                settled[key] = bundle
        return settled

    def _forget_dropped(self) -> list[StoredBundle]:
        """Forget and return what the index has dropped: an alias that pinned it moved, or others took its place."""
        gone = [key for key in self._served if not self._serves(*key)]
        return [self._served.pop(key) for key in gone]

    def _serves(self, name: str, number: str) -> bool:
        return any(model.number == number for model in self._lifecycle.index.versions(name))

    def _to_serve(self, name: str, versions: list[StoredBundle]) -> set[str]:
        """The numbers that stay: what is wanted, and for each of those that cannot be served another that is."""
        numbers = {bundle.number for bundle in versions}
        others = [number for served, number in self._served if served == name and number not in numbers]
        missing = sum((name, number) not in self._served for number in numbers)
        return numbers | set(sorted(others, key=lambda number: int(number or 0), reverse=True)[:missing])

    async def load(self, name: str, number: str | None = None) -> ServedModel:
        """Serve a name's newest version, or one of its numbers, now; also one that failed or serves already.

        What it takes the place of comes back when it changes or is loaded.

        Raises:
            ServiceError: `unknown_model`: the repository has none such.
            ValueError: (BundleError, DeviceError) it cannot be served; what served goes on.
        """
        async with self._turn:
            self._forget_dropped()  # before: that was not replaced by what comes
            versions = (await self.scan()).get(name, [])
            chosen = [bundle for bundle in versions if number in (None, bundle.number)][:1]
            if not chosen:
                what = name[:80] if number is None else f"{name[:80]}/{number[:20]}"
                raise ServiceError("unknown_model", f"the repository has no bundle {what!r}")
            try:
                model = await self._bring(chosen[0], first=True)
            except ValueError as error:
                self._refuse(chosen[0], error)
                raise
            self._bad |= {(bundle.name, bundle.number): bundle for bundle in self._forget_dropped()}
            return model

    async def unload(self, name: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Serve a name, or a version of it, no more, until it changes or is loaded again. Raises ServiceError
        `unknown_model`."""
        async with self._turn:
            gone = await self._lifecycle.unload(name, version)
            for model in gone:
                bundle = self._served.pop((name, model.number), None)
                if bundle is not None:
                    self._bad[name, model.number] = bundle
            return gone

    async def _load(self, bundle: StoredBundle, keep: int) -> list[str]:
        what = bundle.spoken
        try:
            model = await self._bring(bundle, first=False, keep=keep)
        except ValueError as error:
            self._refuse(bundle, error)
            return [f"failed {what}: {error}"]
        return [f"serves {what} ({model.version})"]

    def _refuse(self, bundle: StoredBundle, error: ValueError) -> None:
        """Note a bundle that cannot be served; it is not tried again until it changes."""
        self._bad[bundle.name, bundle.number] = bundle
        self._lifecycle.failed(bundle.name, bundle.number, error)

    async def _bring(self, bundle: StoredBundle, *, first: bool, keep: int | None = None) -> ServedModel:
        key = bundle.name, bundle.number
        model = await self._lifecycle.load(bundle.name, bundle.path, bundle.number, first=first, keep=keep)
        self._served[key] = bundle
        self._bad.pop(key, None)
        return model

    async def _unload(self, name: str, numbers: set[str]) -> list[str]:
        gone = [number for served, number in self._served if served == name and number not in numbers]
        done = []
        for number in gone:
            if self._serves(name, number):
                what = self._served[name, number].spoken
                try:
                    await self._lifecycle.unload(name, number)
                except AliasError as error:  # it goes once that is done
                    if (name, number) not in self._held:
                        self._held.add((name, number))
                        done.append(f"serves {what} on: {error}")
                    continue
                done.append(f"serves {what} no more")
            self._held.discard((name, number))
            del self._served[name, number]
        return done

    async def _poll_forever(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                for line in await self.poll(twice=True):
                    if not line.startswith("failed "):  # that is in the log already
                        logger.info(line)
            except RepositoryError as error:
                logger.error("%s: what serves goes on", error)
            except Exception:
                logger.exception("the repository could not be looked at: what serves goes on")


def _by_key(stored: Mapping[str, list[StoredBundle]]) -> dict[Key, StoredBundle]:
    return {(bundle.name, bundle.number): bundle for versions in stored.values() for bundle in versions}
