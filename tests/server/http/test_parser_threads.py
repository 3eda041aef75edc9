"""Work on threads: its end is always heard of, and whoever leaves takes neither place nor bytes from it."""

import asyncio
import contextlib
import gc
import threading
import weakref
from functools import partial

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.http import parser_threads
from milkweed.server.http.parser_threads import THREADS, KeptThreads, ParserThreads, start_thread

from ...support.waiting import HANG_SECONDS, until

LARGE = parser_threads.INLINE_BYTES + 1


async def test_results_and_errors_come_back() -> None:
    assert await start_thread(lambda: threading.current_thread().name, "worker") == "worker"

    def fails() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        await start_thread(fails, "worker")
    assert await start_thread(lambda: 7, "worker") == 7  # no pool lost a thread


async def test_the_end_is_told_also_where_there_was_no_memory_to_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, failures = asyncio.get_running_loop(), [MemoryError(), MemoryError()]
    call = loop.call_soon_threadsafe

    class Loop:
        def call_soon_threadsafe(self, *given: object) -> object:
            if failures:
                raise failures.pop()
            return call(*given)  # type: ignore[arg-type]

        def is_closed(self) -> bool:
            return False

        create_future = loop.create_future

    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    future = start_thread(lambda: 7, "worker")
    monkeypatch.undo()
    assert await future == 7
    assert not failures


async def test_without_a_thread_the_server_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    parsers = ParserThreads()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(THREADS + 1):
            with pytest.raises(ServiceError) as caught:
                await parsers.run(lambda: 7, LARGE)
            assert (caught.value.status, caught.value.retry_after_seconds) == (503, 1)
    assert await parsers.run(lambda: 7, LARGE) == 7


async def test_who_leaves_a_parser_waits_until_it_has_let_go() -> None:
    parsers, gate, began = ParserThreads(), threading.Event(), threading.Semaphore(0)
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)
        began.release()
        assert gate.wait(HANG_SECONDS)

    tasks = [asyncio.create_task(parsers.run(lambda number=number: work(number), LARGE)) for number in range(5)]  # type: ignore[misc]
    for _ in range(THREADS):
        assert await asyncio.to_thread(began.acquire, timeout=HANG_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks[THREADS:])  # those that waited for a thread are dropped at once
    assert not any(task.done() for task in tasks[:THREADS])  # their bodies are still in use
    late = asyncio.create_task(parsers.run(lambda: 7, LARGE))
    await asyncio.sleep(0)
    assert not late.done()
    gate.set()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert await late == 7
    assert sorted(ran) == list(range(THREADS))


async def test_what_was_worked_on_is_gone_with_the_error() -> None:
    """No cycle keeps a refused body until Python's collector runs."""

    class Body:
        pass

    def refuse(body: Body) -> None:
        raise ValueError(f"no {body}")

    body, parsers = Body(), ParserThreads()
    left = weakref.ref(body)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await parsers.run(partial(refuse, body), LARGE)
        del body
        async with asyncio.timeout(HANG_SECONDS):
            while left() is not None:  # the thread is in its last lines
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_kept_threads_are_few_and_outlive_errors() -> None:
    threads, used = KeptThreads(2, "kept"), set[str]()

    def work(number: int) -> int:
        used.add(f"{threading.current_thread().name} {threading.get_ident()}")
        if number % 3 == 0:
            raise MemoryError
        return number

    results = await asyncio.gather(*(threads.start(partial(work, i)) for i in range(20)), return_exceptions=True)
    assert [result for result in results if isinstance(result, int)] == [i for i in range(20) if i % 3]
    assert all(isinstance(results[i], MemoryError) for i in range(0, 20, 3))
    assert {name.split()[0] for name in used} == {"kept"}
    assert len(used) <= 2
    kept = [thread for thread in threading.enumerate() if thread.name == "kept"]
    threads.close()
    await until(lambda: not any(thread.is_alive() for thread in kept))


async def test_without_a_kept_thread_the_server_is_overloaded_with_one_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = KeptThreads(2, "worker")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ServiceError) as caught:
            threads.start(lambda: 7)
        assert (caught.value.status, caught.value.retry_after_seconds) == (503, 1)
    assert await threads.start(lambda: 7) == 7
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert await threads.start(lambda: 8) == 8
    threads.close()


async def test_a_kept_thread_that_waits_holds_nothing() -> None:
    class Body:
        pass

    body, threads = Body(), KeptThreads(1, "worker")
    left = weakref.ref(body)
    assert await threads.start(partial(isinstance, body, Body))
    del body
    await until(lambda: left() is None)
    threads.close()
