"""The calls of `inference.GRPCInferenceService`, without the wire: from a message to a message."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..repository.model_info import ModelInfo
from ..security.auth import Authenticator
from ..security.key_store import Account
from ..service.params import ClassifyParams
from ..service.service import Service
from ..service.submit import Requester
from ..telemetry.context import RequestContext
from . import metadata as describe
from .grpc_convert import infer_response, parsed_bytes, read_infer_message
from .grpc_messages import Messages
from .infer import before_deadline, find_version, infer, prepare, question_of
from .outputs import output_tensors
from .tensors import InferRequest

# Asked by whoever starts, routes to or restarts the process: they have no key.
PROBES = frozenset({"ServerLive", "ServerReady"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Args:
        account: the caller's, where keys are needed.
        seconds_left: until the caller's deadline, from the trace's start; None where it has none.
    """

    trace: RequestContext
    account: Account | None
    seconds_left: float | None


Method = Callable[[bytes, Call], Awaitable[Any]]


class GrpcService:
    """The methods of one service, by name."""

    def __init__(self, service: Service, gate: Authenticator) -> None:
        self._service = service
        self._gate = gate
        self._messages = Messages()
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

    async def _model_infer(self, payload: bytes, call: Call) -> Any:
        service = self._service
        service.check_accepting()
        call.trace.end_stage("receive")
        with service.body_budget.lease() as hold:
            size = len(payload)
            cost = 2 * size + parsed_bytes(payload)  # as it came, parsed, and its images
            hold.take(cost)
            message = await service.parsers.run(partial(self._read, "ModelInferRequest", payload), size)
            del payload
            model = find_version(service, message.model_name, message.model_version)
            request = read_infer_message(message)
            del message
            hold.give_back(cost - 2 * size)
            with service.using(model):
                return await self._answer(request, size, hold, model, call)

    async def _answer(self, request: InferRequest, size: int, hold: BudgetLease, model: ModelInfo, call: Call) -> Any:
        service = self._service
        params, said = self._params(model, call)
        async with before_deadline(params, call.trace, said=said) as clock:
            prepared = await service.parsers.run(partial(prepare, request, model, service.settings), size)
            outcomes = await infer(
                service,
                params,
                prepared,
                clock,
                Requester(call.trace, receive=None),
                hold,
                charge=lambda images: self._gate.charge_images(call.account, images),
            )

            def write() -> Any:
                outputs = output_tensors(model, outcomes, prepared.options)
                return infer_response(self._messages, model, prepared.id, outputs)

            return await service.parsers.run(write, prepared.answer_cost)

    def _params(self, model: ModelInfo, call: Call) -> tuple[ClassifyParams, bool]:
        """Of metadata and deadline; and whether the caller said anything of time."""
        params = question_of(self._service, model, call.trace)
        said = b"x-request-timeout-ms" in call.trace.headers
        if call.seconds_left is None:
            return params, said
        most = params.timeout_seconds if said else self._service.settings.max_timeout_ms / 1e3
        return replace(params, timeout_seconds=min(most, call.seconds_left)), True

    async def _server_live(self, payload: bytes, call: Call) -> Any:
        return self._messages["ServerLiveResponse"](live=_passes(self._service.check_alive))

    async def _server_ready(self, payload: bytes, call: Call) -> Any:
        return self._messages["ServerReadyResponse"](ready=_passes(self._service.check_ready))

    async def _model_ready(self, payload: bytes, call: Call) -> Any:
        request = self._read("ModelReadyRequest", payload)
        try:
            find_version(self._service, request.name, request.version)
            self._service.check_ready()
        except ServiceError as error:
            if error.code == "unknown_model":
                raise
            return self._messages["ModelReadyResponse"](ready=False)
        return self._messages["ModelReadyResponse"](ready=True)

    async def _server_metadata(self, payload: bytes, call: Call) -> Any:
        return self._messages["ServerMetadataResponse"](**describe.server_metadata())

    async def _model_metadata(self, payload: bytes, call: Call) -> Any:
        request = self._read("ModelMetadataRequest", payload)
        model = find_version(self._service, request.name, request.version)
        return self._messages["ModelMetadataResponse"](
            **describe.model_metadata(model, self._service.models.versions(model.name))
        )

    async def _model_config(self, payload: bytes, call: Call) -> Any:
        request = self._read("ModelConfigRequest", payload)
        model = find_version(self._service, request.name, request.version)
        return self._messages["ModelConfigResponse"](config=describe.model_config(self._service.settings, model))

    async def _model_statistics(self, payload: bytes, call: Call) -> Any:
        request = self._read("ModelStatisticsRequest", payload)
        models: list[ModelInfo] = list(self._service.models.values())
        if request.name:
            models = [find_version(self._service, request.name, request.version)]
        found = describe.statistics(models, await self._service.statistics())
        return self._messages["ModelStatisticsResponse"](model_stats=found)

    async def _repository_index(self, payload: bytes, call: Call) -> Any:
        request = self._read("RepositoryIndexRequest", payload)
        index = describe.repository_index(self._service, ready_only=request.ready)
        return self._messages["RepositoryIndexResponse"](models=index)

    def _read(self, name: str, payload: bytes) -> Any:
        try:
            return self._messages.parse(name, payload)
        except ValueError:
            raise ServiceError("bad_request", f"the message is no {name}") from None


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except ServiceError:
        return False
    return True
