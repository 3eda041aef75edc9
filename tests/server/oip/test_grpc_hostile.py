"""What gRPC callers cannot do to others: send no message, send without a key, or only keep a parser busy."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.http.transport import relay
from milkweed.server.http.transport.turns import Turns
from milkweed.server.oip import grpc_reading, grpc_server
from milkweed.server.oip.grpc_reading import MessageReading
from milkweed.server.security.keys import key_block

from ...support.server_parts import Running, Start, encoded, entered, one_reason, until
from ...support.waiting import HANG_SECONDS
from .grpc_client import SERVICE, Client, calling, grpc, refused

END = object()


class Reading:
    """A call's context: its message comes when it is told."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def send(self, message: object) -> None:
        self._message.set_result(message)

    async def read(self) -> Any:
        self.asked.set()
        return await self._message


def silent(channel: Any, count: int) -> list[Any]:
    """Begin some calls that send no message."""
    return [channel.stream_unary(SERVICE + "ModelInfer")() for _ in range(count)]


async def test_calls_that_send_no_message_do_not_close_the_port(running: Start) -> None:
    """1,024 of them did: each had one of the slots, for ever."""
    async with running(settings={"body_timeout_ms": 60_000}) as app, calling(app) as client:
        channels = [
            grpc.aio.insecure_channel(client.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(10)
        ]
        # A connection may have 128; with 1,024 that are under way or wait, one that comes is refused.
        calls = [call for channel in channels for call in silent(channel, 100)]
        try:
            for _ in range(3):
                answer = await client.ask("ModelInfer", client.infer(encoded()), timeout=HANG_SECONDS)
                assert answer.model_name == "held"
            assert (await client.ask("ServerReady", client.messages.ServerReadyRequest())).ready
        finally:
            for call in calls:
                call.cancel()
            for channel in channels:
                await channel.close()


async def test_beside_a_crowd_without_messages_calls_but_probes_begin_slowly_and_few_are_held_back(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[Turns] = []

    class Waiting(Turns):
        async def wait(self) -> None:
            came.append(self)
            await super().wait()

    monkeypatch.setattr(grpc_server, "Turns", Waiting)
    monkeypatch.setattr(grpc_reading, "CROWD", 2)
    monkeypatch.setattr(grpc_server, "SECONDS_BETWEEN", 3600)
    monkeypatch.setattr(grpc_server, "MAX_WAITING", 1)
    async with running(settings={"body_timeout_ms": 60_000}) as app, calling(app) as client:
        crowd = silent(client.channel, 2)
        await until(lambda: app.service.body_budget.total == 2 * grpc_server.CALL_BYTES)
        metadata, ready = client.messages.ServerMetadataRequest(), client.messages.ServerReadyRequest()
        await client.ask("ServerMetadata", metadata, timeout=HANG_SECONDS)  # the first has nobody to wait for
        held_back = client.start("ServerMetadata", metadata)
        await until(lambda: len(came) == 2)
        await client.ask("ServerMetadata", metadata, timeout=HANG_SECONDS)  # no more are held back than one
        assert (await client.ask("ServerReady", ready, timeout=HANG_SECONDS)).ready
        for call in crowd:
            call.cancel()
        await until(lambda: app.service.body_budget.total == 0)
        await client.ask("ServerMetadata", metadata, timeout=HANG_SECONDS)
        assert len(came) == 2
        assert not held_back.done()
        held_back.cancel()


async def test_a_message_that_never_comes_ends_its_call(running: Start) -> None:
    async with running(settings={"body_timeout_ms": 1000}) as app, calling(app) as client:
        async with one_reason(app, "request_timeout"), refused("DEADLINE_EXCEEDED", "1 s"):
            await silent(client.channel, 1)[0]
        (call,) = silent(client.channel, 1)
        await call.done_writing()
        async with one_reason(app, "bad_request"), refused("INVALID_ARGUMENT", "no message"):
            await call


async def test_no_message_is_asked_for_without_a_key(
    running: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def message(self: MessageReading, context: Any) -> bytes:
        raise AssertionError("whoever has no key was let send")

    monkeypatch.setattr(MessageReading, "message", message)
    file = tmp_path / "keys.toml"
    file.write_text(key_block("ann", "k" * 40))
    with_keys = {"api_keys": str(file)}
    async with running(settings=with_keys) as app, calling(app) as client, refused("UNAUTHENTICATED"):
        await client.ask("ModelInfer", client.infer(bytes(1 << 20)))


@pytest.mark.parametrize("where", ["inputs", "outputs", "id"])
async def test_names_and_parameters_have_a_limit(app: Running, client: Client, where: str) -> None:
    request = client.infer(encoded())
    if where == "id":
        request.id = "x" * (1 << 20)
    else:
        tensor = request.inputs[0] if where == "inputs" else request.outputs.add(name="label")
        for number in range(100 if where == "inputs" else 10_000):
            tensor.parameters[f"{number:01000}"].bool_param = True
    async with one_reason(app, "bad_request"), refused("INVALID_ARGUMENT", "65536"):
        await client.ask("ModelInfer", request)


async def test_one_slow_message_too_many_ends_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_reading, "SLOW_PLACES", 2)
    monkeypatch.setattr(grpc_reading, "QUICK_SECONDS", 0.01)
    reading = MessageReading(30.0, END)
    contexts = [Reading() for _ in range(3)]
    tasks = []
    for context in contexts:
        tasks.append(asyncio.create_task(reading.message(context)))
        await context.asked.wait()
    with pytest.raises(ServiceError, match="longest of more than 2 slow ones"):
        await tasks[0]
    for context, task in zip(contexts[1:], tasks[1:], strict=True):
        context.send(b"slow")
        assert await task == b"slow"
    assert not reading._slow  # who sends slowly for ever must leave nothing behind, which no answer tells
    assert not reading._ended


async def test_calls_wait_for_their_turn_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_reading, "PLACES", 1)
    monkeypatch.setattr(grpc_reading, "MAX_WAITING", 3)
    reading = MessageReading(30.0, END)
    contexts = [Reading() for _ in range(3)]
    tasks = [asyncio.create_task(reading.message(context)) for context in contexts]
    await contexts[0].asked.wait()
    with pytest.raises(ServiceError, match="3 calls wait"):
        await reading.message(Reading())
    assert not contexts[1].asked.is_set()
    tasks[1].cancel()  # whoever leaves while he waits takes nobody's turn
    contexts[0].send(b"first")
    assert await tasks[0] == b"first"
    await contexts[2].asked.wait()
    contexts[2].send(b"third")
    assert await tasks[2] == b"third"
    later = [Reading() for _ in range(3)]  # nobody above still counts as waiting
    for each in later:
        each.send(b"later")
    assert await asyncio.gather(*map(reading.message, later)) == [b"later"] * 3


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


async def test_connections_count_and_make_room(running: Start) -> None:
    """Ports each with a limit took the files of all, and idle connections kept others out."""
    async with running(settings={"max_connections": 4}) as app, calling(app) as client:
        host, _, port = client.address.partition(":")
        idle = []
        for count in range(1, 11):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(PREFACE)
            idle.append((reader, writer))
            # It has begun: of those that wait for their beginning the newest is first.
            await asyncio.wait_for(reader.readexactly(9), HANG_SECONDS)
            await until(lambda count=count: client.table.open == min(count, 4))  # type: ignore[misc]
        for reader, _ in idle[:6]:  # the first ones made room
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
        assert (await client.ask("ModelInfer", client.infer(encoded()))).model_name == "held"
        assert client.table.open <= 4
        for _, writer in idle:
            writer.close()
    await until(lambda: client.table.open == 0)


async def test_probes_are_answered_when_all_connections_wait_for_us(running: Start) -> None:
    async with running(settings={"max_connections": 1}) as app, calling(app) as client:
        app.model.gate.clear()
        held = client.start("ModelInfer", client.infer(encoded()))
        await entered(app.model)
        late = Client(int(client.address.rpartition(":")[2]), client.table)
        assert (await late.ask("ServerLive", late.messages.ServerLiveRequest())).live
        assert (await late.ask("ServerReady", late.messages.ServerReadyRequest())).ready
        async with one_reason(app, "overloaded"), refused("RESOURCE_EXHAUSTED", "all 1 connections"):
            await late.ask("ModelInfer", late.infer(encoded()))
        app.model.gate.set()
        await held
        await late.channel.close()


async def test_an_answer_that_nobody_reads_counts_and_is_ended(running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 of them held 524 MB beside a limit of 64 MiB, for as long as their callers stayed."""
    monkeypatch.setattr(relay, "NOT_READING_SECONDS", 0.5)
    async with running() as app, calling(app) as client:
        request = client.infer(*[encoded()] * 200)
        for name in ("score", "probabilities"):
            request.outputs.add(name=name).parameters["classification"].int64_param = 7
        answer = await client.start("ModelInfer", request)
        budget = app.service.body_budget
        await until(lambda: budget.total == 0)
        stalling = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
        async with grpc.aio.insecure_channel(client.address, options=stalling) as channel:
            call = channel.unary_stream(SERVICE + "ModelInfer")(request.SerializeToString())
            await until(lambda: budget.total >= 2 * len(answer))  # made, and not taken
            assert await asyncio.wait_for(call.code(), HANG_SECONDS) is grpc.StatusCode.UNAVAILABLE
        await until(lambda: budget.total == 0)
        assert app.value("http_connections_closed_total", reason="not_reading") == 1
