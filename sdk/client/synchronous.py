"""Client, for programs without asyncio: it runs an `AsyncClient` on an event loop in a thread of its own."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from ssl import SSLContext
from typing import Any, TypeVar, Unpack, cast, overload

from .answers import Answer, Embeddings, Model, embeddings
from .asynchronous import BATCH_BYTES, CLOSED, TIMEOUT_SECONDS, AsyncClient
from .errors import check_process, refuse_pickle
from .images import Image, encode, encoded, in_batches, is_one
from .requests import CallParams, ClassifyOptions

T = TypeVar("T")


class _LoopThread:
    """An event loop on a thread of this process, begun when it is first needed; `lock` is for those who use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="milkweed-client", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """Asks the milkweed server at a URL. Close it, or use it as a context manager. Any thread may call it.

    Arguments and errors are those of `AsyncClient`. A call to a closed client, or one that is closed during the call,
    raises a RuntimeError.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = 4,
        batch_size: int = 8,
        concurrency: int = 4,
        shrink: bool = False,
        verify: bool | SSLContext = True,
    ) -> None:
        self._client = AsyncClient(
            url,
            api_key=api_key,
            timeout=timeout,
            retries=retries,
            batch_size=batch_size,
            concurrency=concurrency,
            shrink=shrink,
            verify=verify,
        )
        self._closed = False
        self._loops: dict[int, _LoopThread] = {}  # of each process

    __reduce__ = refuse_pickle

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the calls in flight, close the connections, end the thread; a second time does nothing."""
        loop = self._loop()
        with loop.lock:
            if self._closed:
                return
            self._closed = True
            ended = loop.begin(self._end())
        ended.result()
        loop.end()

    @property
    def url(self) -> str:
        """The address of the server, without the path of an endpoint."""
        return self._client.url

    @overload
    def classify(  # type: ignore[overload-overlap]  # text is a path, not several
        self, images: Image, **options: Unpack[ClassifyOptions]
    ) -> Answer: ...

    @overload
    def classify(self, images: Iterable[Image], **options: Unpack[ClassifyOptions]) -> list[Answer]: ...

    def classify(self, images: Image | Iterable[Image], **options: Unpack[ClassifyOptions]) -> Answer | list[Answer]:
        """Classify one image, or each of several: see `AsyncClient.classify`."""
        params = self._client.params(**options)
        if not is_one(images):
            return list(self._stream(cast("Iterable[Image]", images), params))
        (answer,) = self._run(self._client.classify_batch([encode(images, self._run(self._client.side()))], params))
        if answer.error is not None:
            raise answer.error
        return answer

    def stream(self, images: Iterable[Image], **options: Unpack[ClassifyOptions]) -> Iterator[Answer]:
        """Classify any number of images; the answers come one by one, in order. See `AsyncClient.classify`.

        `images` is read as far ahead as `concurrency` requests need, on the calling thread.
        """
        return self._stream(images, self._client.params(**options))

    def embed(
        self, images: Image | Iterable[Image], *, normalize: bool = False, **options: Unpack[ClassifyOptions]
    ) -> Embeddings:
        """The embedding of one image (width,), or of each of several (n, width): see `AsyncClient.embed`."""
        asked: ClassifyOptions = {"top_k": 1, **options, "embedding": True}
        if is_one(images):
            return embeddings([self.classify(images, **asked)], normalize)[0]
        return embeddings(self.stream(cast("Iterable[Image]", images), **asked), normalize)

    def models(self) -> list[Model]:
        """List the server's models; the one that answers by default is the first."""
        return self._run(self._client.models())

    def ready(self) -> bool:
        """Ask once whether the server is there and takes requests."""
        return self._run(self._client.ready())

    def _stream(self, images: Iterable[Image], params: CallParams) -> Iterator[Answer]:
        pending: deque[Future[list[Answer]]] = deque()
        pid, side = os.getpid(), self._run(self._client.side())
        try:
            for batch in in_batches(encoded(images, side), self._client.batch_size, BATCH_BYTES):
                pending.append(self._begin(self._client.classify_batch(batch, params)))
                check_process(pid, "this stream")
                while pending and (pending[0].done() or len(pending) >= self._client.concurrency):
                    yield from self._wait(pending[0])
                    pending.popleft()
            while pending:
                yield from self._wait(pending[0])
                pending.popleft()
        finally:
            for future in pending:
                future.cancel()

    async def _end(self) -> None:
        """Cancel every task, so that threads that still wait end, and close the client."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        loop = self._loop()
        with loop.lock:
            if self._closed:
                work.close()
                raise RuntimeError(CLOSED)
            return loop.begin(work)

    def _loop(self) -> "_LoopThread":
        pid = os.getpid()
        return self._loops.get(pid) or self._loops.setdefault(pid, _LoopThread())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._begin(work)
        try:
            return self._wait(future)
        except BaseException:
            future.cancel()  # an interrupt came: nobody waits for the answer
            raise

    def _wait(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
