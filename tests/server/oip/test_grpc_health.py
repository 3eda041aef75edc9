"""grpc.health.v1 and server reflection over a socket, asked with the messages of gRPC's own packages."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.server.oip import grpc_service
from milkweed.server.oip.grpc_server import GrpcServer
from milkweed.server.oip.grpc_service import HEALTH, REFLECTION
from milkweed.server.security.keys import key_block

from ...support.server_parts import Running, Start, until
from .grpc_client import Client, calling, grpc, refused

health: Any = pytest.importorskip("grpc_health.v1.health_pb2")
reflection: Any = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")


async def check(client: Client, service: str) -> str:
    """The status of a service by Check."""
    call = client.channel.unary_unary(f"/{HEALTH}/Check")
    answer = health.HealthCheckResponse.FromString(
        await call(health.HealthCheckRequest(service=service).SerializeToString())
    )
    return str(health.HealthCheckResponse.ServingStatus.Name(answer.status))


def watch(client: Client, service: str) -> Any:
    """A call of Watch, whose answers are read one by one."""
    call = client.channel.unary_stream(f"/{HEALTH}/Watch", response_deserializer=health.HealthCheckResponse.FromString)
    return call(health.HealthCheckRequest(service=service).SerializeToString())


async def test_health_is_that_of_the_probes_and_needs_no_key(running: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(key_block("ann", "k" * 40))
    async with running(settings={"api_keys": str(file)}) as app, calling(app) as client:
        for name in ("", "readyz", "livez", "inference.GRPCInferenceService", HEALTH):
            assert await check(client, name) == "SERVING"
        async with refused("NOT_FOUND", "no service 'cat'", "livez"):
            await check(client, "cat")
        async with refused("INVALID_ARGUMENT", "no HealthCheckRequest"):
            await client.channel.unary_unary(f"/{HEALTH}/Check")(b"\xff")
        app.service.begin_drain()
        assert [await check(client, name) for name in ("", "readyz", "livez")] == ["NOT_SERVING"] * 2 + ["SERVING"]


async def test_a_watch_tells_each_change_and_ends_with_the_server(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_service, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(grpc_service, "MAX_WATCHES", 2)
    async with running() as app, calling(app) as client:
        ready, unknown = watch(client, ""), watch(client, "cat")
        assert (await ready.read()).status == health.HealthCheckResponse.SERVING
        assert (await unknown.read()).status == health.HealthCheckResponse.SERVICE_UNKNOWN
        async with refused("RESOURCE_EXHAUSTED", "2 calls"):
            await watch(client, "").read()
        unknown.cancel()
        app.service.begin_drain()
        assert (await ready.read()).status == health.HealthCheckResponse.NOT_SERVING
        stopped = asyncio.create_task(client.stop())
        assert await asyncio.wait_for(ready.read(), 20) is grpc.aio.EOF  # it does not outlast the drain
        await stopped
    assert client.table.open <= 1


async def test_a_stream_that_ends_while_it_writes_ends_no_other_call_of_its_connection() -> None:
    waiting: set[asyncio.Task[Any]] = set()

    async def end_unless_read() -> None:
        waiting.add(asyncio.current_task())  # type: ignore[arg-type]
        await asyncio.Event().wait()

    async def answers(_: Any) -> AsyncIterator[Any]:
        yield health.HealthCheckResponse()

    async def write(_: bytes) -> None:
        await until(lambda: bool(waiting))
        raise asyncio.CancelledError

    connection = SimpleNamespace(end_unless_read=end_unless_read)
    server: Any = SimpleNamespace(_connection=lambda *_: connection, _reading=SimpleNamespace(next=answers), _grpc=grpc)
    handle = GrpcServer._stream(server, answers).stream_stream
    with pytest.raises(asyncio.CancelledError):
        await handle(None, SimpleNamespace(write=write))
    await asyncio.wait(waiting, timeout=20)
    assert all(task.cancelled() for task in waiting)


async def test_reflection_describes_what_is_served(app: Running, client: Client) -> None:
    call = client.channel.stream_stream(
        f"/{REFLECTION}/ServerReflectionInfo",
        request_serializer=reflection.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection.ServerReflectionRequest(list_services="*"))
    names = {each.name for each in (await call.read()).list_services_response.service}
    assert names == {"inference.GRPCInferenceService", HEALTH, REFLECTION}
    for name in names:
        await call.write(reflection.ServerReflectionRequest(file_containing_symbol=name))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
    await call.write(reflection.ServerReflectionRequest(file_containing_symbol="cat"))
    assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await until(lambda: app.service.body_budget.total == 0)
