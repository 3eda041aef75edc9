"""AsyncClient, the client for asyncio. All that is sent to a server is sent here; `Client` runs it on a thread."""

import asyncio
import os
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Sequence
from functools import partial
from ssl import SSLContext
from typing import Unpack, cast, overload

import httpx

from .answers import Answer, Embeddings, Model, embeddings, read_answers, read_error, read_models
from .errors import TOO_MUCH, DeadlineExceeded, ImageRefused, MilkweedError, NoAnswer, refuse_pickle
from .images import EncodedImage, Image, encode, encoded, in_batches, is_one
from .requests import MOST_TIMEOUT_MS, CallParams, ClassifyOptions, base_url, body_of, key_headers
from .shrink import kept_side

TIMEOUT_SECONDS = 60.0
CONNECT_SECONDS = 10.0
BATCH_BYTES = 16 << 20
"""The images of one request hold about this much at most; servers take bodies of 64 MiB."""

FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.1, 5.0
"""The wait before the second try, and the longest one; each try doubles the wait."""

CLOSED = "the client is closed"

_REFUSED = (429, 503)
_GONE = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


class AsyncClient:
    """Asks the milkweed server at a URL. Close it, or use it as a context manager.

    Args:
        url: the address of the server, such as http://localhost:8000, or of its /classify.
        api_key: the key, where the server asks for one; None takes that of MILKWEED_API_KEY.
        timeout: seconds that a request may take with all its tries, unless a call gives its own; the server is told.
        retries: how often a request is tried again where nobody answers, or a refusal does not say when to come back.
            A refusal that does (`Retry-After`) is followed as long as there is time.
        batch_size: the most images of one request, where there are several.
        concurrency: the most requests at once.
        shrink: scale large photographs before they are sent, to twice what the largest of the server's models looks at,
            which is asked once; answers differ a little.
        verify: as in httpx: False, or an SSLContext that knows other authorities or a client's certificate.

    Raises:
        ValueError: an argument that cannot be.
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
        for name, value, least in (
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
            ("concurrency", concurrency, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}: expected at least {least}")
        self.url = base_url(url)
        self.timeout, self.retries = timeout, retries
        self.batch_size, self.concurrency = batch_size, concurrency
        self._shrink = shrink
        self._side: int | None = None
        self._connect = partial(
            httpx.AsyncClient,
            headers=key_headers(api_key),
            # The request as a whole has a deadline, which says more than one for each read and write.
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
            verify=verify,
        )
        # Connections belong to a process and an event loop.
        self._open: dict[int, dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None]]]] = {}
        self._closed = False

    __reduce__ = refuse_pickle

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._closed, here = True, asyncio.get_running_loop()
        for loop, (_, end) in self._open.pop(os.getpid(), {}).items():
            if loop is here:
                await end.aclose()
            elif loop.is_running():  # on another thread
                asyncio.run_coroutine_threadsafe(end.aclose(), loop)

    @overload
    async def classify(  # type: ignore[overload-overlap]  # text is a path, not several
        self, images: Image, **options: Unpack[ClassifyOptions]
    ) -> Answer: ...

    @overload
    async def classify(self, images: Iterable[Image], **options: Unpack[ClassifyOptions]) -> list[Answer]: ...

    async def classify(
        self, images: Image | Iterable[Image], **options: Unpack[ClassifyOptions]
    ) -> Answer | list[Answer]:
        """Classify one image, or each of several.

        Args:
            images: one image, or several; `stream` holds fewer at once.
            model: the name of one of the server's models, or an alias; None is its first one.
            top_k: the number of classes in an answer; None is the server's own number.
            threshold: the least score of an answer's classes, of which there may then be none.
            timeout: seconds a request may take with all its tries.
            priority: `bulk` lets interactive requests go first.
            embedding: answers have the image's embedding too.
            head: the name of one of the model's heads, which answers in its place.

        Returns:
            An answer, or a list of them in order, in which an image that got none has its `error`.

        Raises:
            MilkweedError: a request got no answer; the class says why. Of one image also where that is its own fault.
        """
        params = self.params(**options)
        if not is_one(images):
            return [answer async for answer in self._stream(cast("Iterable[Image]", images), params)]
        (answer,) = await self.classify_batch([await asyncio.to_thread(encode, images, await self.side())], params)
        if answer.error is not None:
            raise answer.error
        return answer

    def stream(self, images: Iterable[Image], **options: Unpack[ClassifyOptions]) -> AsyncIterator[Answer]:
        """Classify any number of images; the answers come one by one, in order. See `classify`.

        `images` is read as far ahead as `concurrency` requests need, on another thread, since files may be slow.
        """
        return self._stream(images, self.params(**options))

    async def embed(
        self, images: Image | Iterable[Image], *, normalize: bool = False, **options: Unpack[ClassifyOptions]
    ) -> Embeddings:
        """The embedding of one image (width,), or of several (n, width), normalised to length 1 or not."""
        asked: ClassifyOptions = {"top_k": 1, **options, "embedding": True}
        if is_one(images):
            return embeddings([await self.classify(images, **asked)], normalize)[0]
        return embeddings([answer async for answer in self.stream(cast("Iterable[Image]", images), **asked)], normalize)

    async def models(self) -> list[Model]:
        """List the server's models; the one that answers by default is the first."""
        response = await self._send("GET", "/v1/models", self.timeout)
        if response.status_code != 200:
            raise read_error(response.content, response.headers, response.status_code)
        return read_models(response.content, response.status_code)

    async def ready(self) -> bool:
        """Ask once whether the server is there and takes requests."""
        try:
            return (await (await self._http()).get(self.url + "/readyz", timeout=CONNECT_SECONDS)).status_code == 200
        except (httpx.TransportError, httpx.InvalidURL):
            return False

    async def side(self) -> int | None:
        """Return the shorter side in pixels to which larger photographs are scaled; None without `shrink`."""
        if self._shrink and self._side is None:
            self._side = kept_side(await self.models())
        return self._side

    def params(self, **options: Unpack[ClassifyOptions]) -> CallParams:
        """Check the arguments of a call and return them as one object."""
        return CallParams.of(options, self.timeout)

    async def classify_batch(self, images: Sequence[EncodedImage], params: CallParams) -> list[Answer]:
        """Classify the images of one request; a request that is too large is sent in halves.

        Raises:
            MilkweedError: the request got no answer, and that is no fault of its only image.
        """
        sent = [image for image in images if isinstance(image, bytes)]
        answers = iter(await self._post(sent, params) if sent else [])
        return [next(answers) if isinstance(image, bytes) else Answer(error=image) for image in images]

    async def _post(self, images: Sequence[bytes], params: CallParams) -> list[Answer]:
        body, content_type = body_of(images)
        headers = {"Content-Type": content_type, **params.headers}
        response = await self._send(
            "POST", "/classify", params.timeout_seconds, params=params.query, body=body, headers=headers
        )
        try:
            return read_answers(response.content, response.headers, response.status_code, len(images))
        except MilkweedError as error:
            if len(images) == 1 and isinstance(error, ImageRefused):
                return [Answer(error=error, request_id=error.request_id)]
            if len(images) == 1 or error.code not in TOO_MUCH:
                raise
        half = len(images) // 2
        return [*await self._post(images[:half], params), *await self._post(images[half:], params)]

    async def _stream(self, images: Iterable[Image], params: CallParams) -> AsyncIterator[Answer]:
        batches = in_batches(encoded(images, await self.side()), self.batch_size, BATCH_BYTES)
        pending: deque[asyncio.Task[list[Answer]]] = deque()
        try:
            more = True
            while more or pending:
                batch = await asyncio.to_thread(next, batches, None) if more else None
                more = batch is not None
                if batch is not None:
                    pending.append(asyncio.create_task(self.classify_batch(batch, params)))
                while pending and (not more or pending[0].done() or len(pending) >= self.concurrency):
                    for answer in await pending[0]:
                        yield answer
                    pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _send(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        params: dict[str, str] | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request and return its response; try again where that may help and there is time.

        Raises:
            MilkweedError: none came, or only refusals.
        """
        loop, http = asyncio.get_running_loop(), await self._http()
        deadline, tries, refused = loop.time() + seconds, 0, ""
        ask = partial(http.request, method, self.url + path, params=params, content=body)
        while True:
            left = max(0.0, deadline - loop.time())
            deadline_header = {"X-Request-Timeout-Ms": str(int(min(max(1.0, left * 1e3), MOST_TIMEOUT_MS)))}
            try:
                async with asyncio.timeout(left):
                    result = await self._try(path, ask(headers={**(headers or {}), **deadline_header}))
            except TimeoutError:
                raise DeadlineExceeded("deadline", f"no answer within {seconds:g} s{refused}") from None
            if isinstance(result, httpx.Response):
                return result
            wait = min(FIRST_WAIT_SECONDS * 2**tries, MOST_WAIT_SECONDS) * random.uniform(0.5, 1.0)
            tries += result.retry_after is None
            wait = (result.retry_after or 0.0) + wait
            if tries > self.retries or loop.time() + wait >= deadline:
                raise result
            refused = f"; the last time: {result}"
            await asyncio.sleep(wait)

    async def _try(self, path: str, asking: Awaitable[httpx.Response]) -> httpx.Response | MilkweedError:
        """One try: the response, or why there is none yet; raises MilkweedError where another try cannot help."""
        try:
            response = await asking
        except _GONE as error:
            return self._no_answer(path, error)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._no_answer(path, error) from error
        if response.status_code in _REFUSED:
            return read_error(response.content, response.headers, response.status_code)
        return response

    async def _http(self) -> httpx.AsyncClient:
        """The connections of this process and event loop."""
        if self._closed:
            raise RuntimeError(CLOSED)
        loop, by_loop = asyncio.get_running_loop(), self._open.setdefault(os.getpid(), {})
        if loop not in by_loop:
            for ended in [other for other in list(by_loop) if other.is_closed()]:
                by_loop.pop(ended, None)
            http = self._connect()
            by_loop[loop] = http, until_end(http)
            await anext(by_loop[loop][1])
        return by_loop[loop][0]

    def _no_answer(self, path: str, error: Exception) -> MilkweedError:
        no_answer = NoAnswer("no_answer", f"no answer from {self.url}{path}: {str(error) or type(error).__name__}")
        no_answer.__cause__ = error
        return no_answer


async def until_end(http: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Close connections when an event loop ends: `asyncio.run` closes the generators that were begun in it."""
    try:
        yield
    finally:
        await http.aclose()
