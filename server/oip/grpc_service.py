"""Answers the calls of `inference.GRPCInferenceService`, gRPC's health and reflection: bytes become a response."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..repository.served_model import ServedModel
from ..security.auth import Authenticator
from ..security.key_store import Account
from ..service.caller import Caller
from ..service.params import ClassifyParams, params_for
from ..service.service import Checks, Service
from ..telemetry.context import RequestContext
from . import metadata as describe
from .grpc_convert import infer_response, parsed_bytes, read_infer_message
from .infer import read_query

EMPTY = frozenset({"ServerLive", "ServerReady"})
"""Calls whose messages say nothing, so that they are not read."""

PROBES = EMPTY | {"Check"}
"""Calls that need no key: whoever starts, routes to or restarts the process makes them."""


HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

LOOK_SECONDS = 1.0
"""How often a watch looks: an engine that hangs tells nobody."""

MAX_WATCHES = 128

Read = Callable[[], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """One call and who makes it.

    Args:
        account: the caller's account, where keys are needed.
        seconds_left: from the start of the call to the caller's deadline; None where it has none.
        lease: the memory that the call has of the body budget, until its answer has been read.
    """

    context: RequestContext
    account: Account | None
    seconds_left: float | None
    lease: BudgetLease


Method = Callable[[bytes, GrpcCall], Awaitable[Any]]
"""Answers a message with one, which may be serialised already, as large ones are beside the loop."""


class GrpcService:
    """Holds the methods of one service by name."""

    def __init__(self, service: Service, auth: Authenticator) -> None:
        from . import grpc_service_pb2  # not above: gRPC and Protobuf are an extra

        self._service = service
        self._auth = auth
        self._messages: Any = grpc_service_pb2
        self.methods: dict[str, Method] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "ModelInfer": self._model_infer,
        }

    async def _model_infer(self, payload: bytes, call: GrpcCall) -> Any:
        service = self._service
        service.check_accepting()
        call.context.end_stage("receive")
        size = len(payload)
        cost = 2 * size + parsed_bytes(payload)  # as it came, parsed, and its images
        call.lease.take(cost)
        message = await service.parsers.run(partial(self._read, "ModelInferRequest", payload), size)
        del payload
        model = service.find_version(message.model_name, message.model_version)
        request = read_infer_message(message)
        del message
        call.lease.give_back(cost - 2 * size)
        params, write = self._params(model, call), partial(infer_response, self._messages, model)
        charge = partial(self._auth.charge_images, call.account)
        caller = Caller(call.context, None, call.lease, charge)
        read = partial(read_query, service, request, size, params, write)
        return await service.handler.answer(params, caller, read)

    def _params(self, model: ServedModel, call: GrpcCall) -> ClassifyParams:
        """Read the metadata and the caller's deadline."""
        settings = self._service.settings
        params = params_for(model, call.context.headers, settings)
        if call.seconds_left is None:
            return params
        most = params.timeout_seconds if params.timeout_named else settings.max_timeout_ms / 1e3
        return replace(params, timeout_seconds=min(most, call.seconds_left), timeout_named=True)

    async def _server_live(self, payload: bytes, call: GrpcCall) -> Any:
        return self._messages.ServerLiveResponse(live=passes(self._service.check_alive))

    async def _server_ready(self, payload: bytes, call: GrpcCall) -> Any:
        return self._messages.ServerReadyResponse(ready=passes(self._service.check_ready))

    async def _model_ready(self, payload: bytes, call: GrpcCall) -> Any:
        request = self._read("ModelReadyRequest", payload)

        def check() -> None:
            self._service.find_version(request.name, request.version)
            self._service.check_ready()

        return self._messages.ModelReadyResponse(ready=passes(check))

    async def _server_metadata(self, payload: bytes, call: GrpcCall) -> Any:
        return self._messages.ServerMetadataResponse(**describe.server_metadata())

    async def _model_metadata(self, payload: bytes, call: GrpcCall) -> Any:
        request = self._read("ModelMetadataRequest", payload)
        model = self._service.find_version(request.name, request.version)
        return self._messages.ModelMetadataResponse(
            **describe.model_metadata(model, self._service.models.versions(model.name))
        )

    async def _model_config(self, payload: bytes, call: GrpcCall) -> Any:
        request = self._read("ModelConfigRequest", payload)
        model = self._service.find_version(request.name, request.version)
        return self._messages.ModelConfigResponse(config=describe.model_config(self._service.settings, model))

    async def _model_statistics(self, payload: bytes, call: GrpcCall) -> Any:
        request = self._read("ModelStatisticsRequest", payload)
        models: list[ServedModel] = list(self._service.models.values())
        if request.name:
            models = [self._service.find_version(request.name, request.version)]
        statistics = describe.statistics(models, await self._service.statistics())
        return self._messages.ModelStatisticsResponse(model_stats=statistics)

    async def _repository_index(self, payload: bytes, call: GrpcCall) -> Any:
        request = self._read("RepositoryIndexRequest", payload)
        service = self._service
        index = describe.repository_index(service.models, service.lifecycle.failures, service.bundles, request.ready)
        return self._messages.RepositoryIndexResponse(models=index)

    def _read(self, name: str, payload: bytes) -> Any:
        return read_message(getattr(self._messages, name), payload)


class GrpcHealth:
    """Tells whether the server is ready, by the names "", `readyz` and each of `services`, and by `livez` whether it is
    alive. Reflection lists `services`. Raises ImportError where the packages are missing."""

    def __init__(self, checks: Checks, services: list[str]) -> None:
        from google.protobuf.descriptor_pool import DescriptorPool
        from grpc_health.v1 import health_pb2
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        from . import grpc_service_pb2

        pool: Any = DescriptorPool()
        for messages in (grpc_service_pb2, health_pb2, reflection_pb2):
            pool.AddSerializedFile(messages.DESCRIPTOR.serialized_pb)
        self._messages, self._reflected = health_pb2, reflection_pb2.ServerReflectionRequest
        self._reflection = reflection.aio.ReflectionServicer(services, pool)
        self._checks = dict.fromkeys(("", "readyz", *services), checks["readyz"]) | {"livez": checks["livez"]}
        self._watches = 0
        self.ending = asyncio.Event()
        """Set when watches shall end."""

    async def check(self, payload: bytes, call: GrpcCall) -> Any:
        """Answer Check. Raises ServiceError `not_found`, `bad_request`."""
        name = read_message(self._messages.HealthCheckRequest, payload).service
        if name not in self._checks:
            raise ServiceError("not_found", f"no service {name[:40]!r}; there are: {', '.join(self._checks)}")
        return self._answer(name)

    async def watch(self, read: Read) -> AsyncIterator[Any]:
        """Answer Watch whenever there is something new. Raises ServiceError `overloaded`, `bad_request`."""
        name, last = read_message(self._messages.HealthCheckRequest, await read() or b"").service, None
        if self._watches >= MAX_WATCHES:
            raise ServiceError("overloaded", f"{MAX_WATCHES} calls watch already")
        self._watches += 1
        try:
            while not self.ending.is_set():
                if (answer := self._answer(name)) != last:
                    yield (last := answer)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ending.wait(), LOOK_SECONDS)
        finally:
            self._watches -= 1

    async def reflect(self, read: Read) -> AsyncIterator[Any]:
        """Answer ServerReflectionInfo. Raises ServiceError `bad_request`."""

        async def requests() -> AsyncIterator[Any]:
            while (payload := await read()) is not None:
                yield read_message(self._reflected, payload)

        async for answer in self._reflection.ServerReflectionInfo(requests(), None):
            yield answer

    def _answer(self, name: str) -> Any:
        check = self._checks.get(name)
        status = "SERVICE_UNKNOWN" if check is None else "SERVING" if passes(check) else "NOT_SERVING"
        return self._messages.HealthCheckResponse(status=status)


def read_message(kind: Any, payload: bytes) -> Any:
    """Parse a message of that kind. Raises ServiceError `bad_request`."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(payload)
    except DecodeError:
        raise ServiceError("bad_request", f"the message is no {kind.DESCRIPTOR.name}") from None


def passes(check: Callable[[], None]) -> bool:
    """Whether a check of the service raises nothing."""
    try:
        check()
    except ServiceError:
        return False
    return True
