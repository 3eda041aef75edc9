"""A client of the gRPC service, with the generated messages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from milkweed.server.http.transport.connection_table import ConnectionTable
from milkweed.server.oip.grpc_server import GrpcServer

from . import rest_client as oip

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc.aio")

SERVICE = "/inference.GRPCInferenceService/"


class Client:
    """Calls by name, on one channel. `stop`: stops the server."""

    stop: Callable[[], Awaitable[None]]

    def __init__(self, port: int, table: ConnectionTable) -> None:
        self.table = table
        self.messages: Any = pytest.importorskip("milkweed.server.oip.grpc_service_pb2")
        self.address = f"127.0.0.1:{port}"
        self.channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def start(self, method: str, message: Any, **options: Any) -> Any:
        call = self.channel.unary_unary(SERVICE + method)
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        return call(payload, **options)

    async def ask(self, method: str, message: Any, **options: Any) -> Any:
        answer = await self.start(method, message, **options)
        return getattr(self.messages, f"{method}Response").FromString(answer)

    def infer(self, *images: bytes, model: str = "held", **more: Any) -> Any:
        """A request with encoded images as raw contents."""
        request = self.messages.ModelInferRequest(model_name=model, **more)
        request.inputs.add(name="image", datatype="BYTES", shape=[len(images)])
        request.raw_input_contents.append(b"".join(len(i).to_bytes(4, "little") + i for i in images))
        return request


@asynccontextmanager
async def calling(app: Any) -> AsyncIterator[Client]:
    """A client of an app, whose gRPC server runs."""
    service = app.service
    table = ConnectionTable(service.settings, service.settings.max_connections, service.metrics)
    server = GrpcServer(service, app.app.state.auth, table, app.app.state.tracer)
    client = Client(await server.start(), table)
    client.stop = partial(server.stop, 30)
    try:
        yield client
    finally:
        await client.channel.close()
        await server.stop(0)


def arrays(response: Any) -> dict[str, Any]:
    """The outputs by name."""
    assert len(response.outputs) == len(response.raw_output_contents)
    return {
        output.name: np.array(
            oip.decoded(output.datatype, data), object if output.datatype == "BYTES" else None
        ).reshape(output.shape)
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }


@asynccontextmanager
async def refused(status: str, *words: str) -> AsyncIterator[SimpleNamespace]:
    """Within, a call fails by that status, in one line with those words."""
    caught = SimpleNamespace()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        yield caught
    failure = error.value
    assert failure.code() == getattr(grpc.StatusCode, status), failure
    caught.metadata = dict(tuple(failure.trailing_metadata()))
    for word in words:
        assert word in failure.details()
    assert "\n" not in failure.details()
