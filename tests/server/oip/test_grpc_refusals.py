"""What gRPC refuses: statuses, one reason each, deadlines, departed callers, keys, a port that is taken."""

import asyncio
import random
import socket
from typing import Any

import pytest

from milkweed.server.http.transport.connection_table import ConnectionTable
from milkweed.server.http.transport.sockets import PortError
from milkweed.server.oip.grpc_server import GrpcServer
from milkweed.server.security.keys import key_block

from ...support.server_parts import Running, Start, broken, calm, encoded, entered, one_reason, until
from .grpc_client import Client, calling, grpc, refused


async def test_refusals_have_a_status_and_one_reason(running: Start) -> None:
    good = encoded()
    async with running(settings={"max_images_per_request": 2}) as app, calling(app) as client:
        many = client.infer(good, good, good)
        both = client.infer(good)
        both.inputs[0].contents.bytes_contents.append(good)
        lone = client.infer(good)
        lone.raw_input_contents.append(b"")
        half = client.infer(good)
        half.inputs[0].datatype = "FP16"
        del half.raw_input_contents[:]
        shape = client.infer(good)
        shape.inputs[0].shape[0] = -1
        odd = client.infer(good)
        odd.parameters["top_k"].SetInParent()
        for request, status, code, words in (
            (client.infer(good, model="cat"), "NOT_FOUND", "unknown_model", ("'cat'",)),
            (client.infer(good, model_version="9"), "NOT_FOUND", "unknown_model", ("'9'",)),
            (client.infer(b"text"), "INVALID_ARGUMENT", "unsupported_format", ()),
            (client.infer(good, broken()), "INVALID_ARGUMENT", "undecodable", ("image 1: ",)),
            (many, "INVALID_ARGUMENT", "too_many_images", ("3 images", "2")),
            (both, "INVALID_ARGUMENT", "bad_request", ("both",)),
            (lone, "INVALID_ARGUMENT", "bad_request", ("2 raw_input_contents for 1",)),
            (half, "INVALID_ARGUMENT", "bad_request", ("raw_input_contents",)),
            (shape, "INVALID_ARGUMENT", "bad_request", ("shape",)),
            (odd, "INVALID_ARGUMENT", "bad_request", ("'top_k' has no value",)),
            (client.infer(good, id="x" * 1025), "INVALID_ARGUMENT", "bad_request", ("1024",)),
            (b"\xff\xff", "INVALID_ARGUMENT", "bad_request", ("broken off",)),
            (b"\x08\x01", "INVALID_ARGUMENT", "bad_request", ("no ModelInferRequest",)),
            (b"\x0a\x05ab", "INVALID_ARGUMENT", "bad_request", ("no ModelInferRequest",)),
            (b"\x2a\x00" * 300, "INVALID_ARGUMENT", "bad_request", ("256 fields",)),
            (b"", "NOT_FOUND", "unknown_model", ()),
        ):
            async with one_reason(app, code), refused(status, *words) as caught:
                await client.ask("ModelInfer", request)
            assert caught.metadata["milkweed-code"] == code
            assert caught.metadata["x-request-id"]
        async with one_reason(app, "bad_request"), refused("INVALID_ARGUMENT"):
            await client.ask("ModelMetadata", b"\xff")
        async with refused("UNIMPLEMENTED"):
            await client.start("ModelStreamInfer", b"")
        assert app.service.body_budget.total == 0


async def test_internal_errors_have_no_detail(app: Running, client: Client) -> None:
    app.model.failure = RuntimeError("secret detail")
    async with one_reason(app, "internal"), refused("INTERNAL", "internal error") as caught:
        await client.ask("ModelInfer", client.infer(encoded()), metadata=(("x-request-id", "me-1"),))
    assert caught.metadata["x-request-id"] == "me-1"


async def test_large_messages_are_refused(running: Start) -> None:
    limits = {"max_body_bytes": 4096, "max_held_bytes": 65_536}  # of which a message may have a 32nd
    async with running(settings=limits) as app, calling(app) as client:
        async with refused("RESOURCE_EXHAUSTED", "2048"):
            await client.ask("ModelInfer", client.infer(bytes(3000)))
        app.service.body_budget.add(50_000)
        typed = client.infer(encoded())
        typed.inputs[0].contents.bytes_contents.append(bytes(1500))
        del typed.raw_input_contents[:]
        async with one_reason(app, "overloaded"), refused("RESOURCE_EXHAUSTED", "50000", "65536"):
            await client.ask("ModelInfer", typed)
        app.service.body_budget.add(-50_000)
        async with refused("UNIMPLEMENTED", "gzip"):
            await client.ask("ModelInfer", client.infer(encoded()), compression=grpc.Compression.Gzip)


async def test_full_queue_is_resource_exhausted_and_draining_unavailable(running: Start) -> None:
    limits = {"max_queue_images": 1, "max_images_per_request": 1}
    async with running(settings=limits) as app, calling(app) as client:
        app.model.gate.clear()
        first = client.start("ModelInfer", client.infer(encoded()))
        await entered(app.model)
        second = client.start("ModelInfer", client.infer(encoded()))
        await until(lambda: app.service.scheduler.depth == 1)
        async with one_reason(app, "overloaded"), refused("RESOURCE_EXHAUSTED") as caught:
            await client.ask("ModelInfer", client.infer(encoded()))
        assert int(caught.metadata["retry-after"]) >= 1
        app.service.stop_accepting()
        async with one_reason(app, "draining"), refused("UNAVAILABLE"):
            await client.ask("ModelInfer", client.infer(encoded()))
        app.model.gate.set()
        await asyncio.gather(first, second)


@pytest.mark.parametrize("how", ["parameter", "metadata"])
async def test_deadline_of_ours_is_deadline_exceeded(app: Running, client: Client, how: str) -> None:
    app.model.gate.clear()
    calm(app)
    request, metadata = client.infer(encoded()), ()
    if how == "parameter":
        request.parameters["timeout"].int64_param = 300_000
    else:
        metadata = (("x-request-timeout-ms", "300"),)
    async with one_reason(app, "deadline"), refused("DEADLINE_EXCEEDED", "300 ms"):
        await client.ask("ModelInfer", request, metadata=metadata)
    app.model.gate.set()


async def test_callers_deadline_and_departure_free_the_queue(app: Running, client: Client) -> None:
    app.model.gate.clear()
    first = client.start("ModelInfer", client.infer(encoded()))
    await entered(app.model)
    calm(app)
    async with one_reason(app, "deadline"):
        late = client.start("ModelInfer", client.infer(encoded()), timeout=3)
        await until(lambda: app.service.scheduler.depth == 1)
        async with refused("DEADLINE_EXCEEDED"):
            await late
        await until(lambda: app.service.scheduler.depth == 0)
        await until(lambda: app.value("requests_rejected_total", reason="deadline") > 0)
    leaving = client.start("ModelInfer", client.infer(encoded()))
    await until(lambda: app.service.scheduler.depth == 1)
    leaving.cancel()
    await until(lambda: app.service.scheduler.depth == 0)
    await until(lambda: app.value("requests_cancelled_total", stage="wait") > 0)
    app.model.gate.set()
    await first
    assert app.service.body_budget.total == 0


async def test_grpc_calls_need_a_key(running: Start, tmp_path: Any) -> None:
    key = "k" * 40
    file = tmp_path / "keys.toml"
    file.write_text(key_block("ann", key) + "requests_per_second = 0.001\n")
    async with running(settings={"api_keys": str(file)}) as app, calling(app) as client:
        kinds = client.messages
        assert (await client.ask("ServerReady", kinds.ServerReadyRequest())).ready
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            async with one_reason(app, "unauthorized"), refused("UNAUTHENTICATED"):
                await client.ask("ModelInfer", client.infer(encoded()), metadata=metadata)
        said = (("authorization", f"Bearer {key}"),)
        await client.ask("ModelInfer", client.infer(encoded()), metadata=said)
        async with one_reason(app, "rate_limited"), refused("RESOURCE_EXHAUSTED") as caught:
            await client.ask("ModelInfer", client.infer(encoded()), metadata=said)
        assert int(caught.metadata["retry-after"]) >= 1


async def test_port_in_use_is_an_error_of_one_line(running: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with running(settings={"grpc_port": listener.getsockname()[1]}) as app:
            service = app.service
            table = ConnectionTable(service.settings, 9, service.metrics)
            with pytest.raises(PortError, match="cannot listen on"):
                GrpcServer(service, app.app.state.auth, table)


async def test_random_messages_are_never_internal_errors(app: Running, client: Client) -> None:
    numbers = random.Random(0)
    good = client.infer(encoded(size=(3, 2)), id="x").SerializeToString()
    for _ in range(300):
        message = bytearray(good)
        for _ in range(numbers.randint(1, 4)):
            message[numbers.randrange(min(len(message), 60))] = numbers.randrange(256)
        cut = bytes(message[: numbers.choice((len(message), numbers.randrange(len(message))))])
        try:
            await client.start("ModelInfer", cut)
        except grpc.aio.AioRpcError as error:
            known = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
            assert error.code() in known, (cut, error)  # noqa: PT017 (it may also be answered)
    assert app.value("requests_rejected_total", reason="internal") == 0
    assert app.service.body_budget.total == 0
