"""Speaks what KServe V1, TensorFlow Serving and Vertex AI share: `instances` in JSON, answered by `predictions`."""

import json
from typing import Any, Literal

from msgspec import Raw, Struct

from ...loaders.decode.npy import count_images, split_images
from ..errors import ServiceError
from ..http.base64_text import from_base64
from ..http.client_json import decoded, elements, without
from ..http.payload import Encoded, Payload, PayloadFormat, payload_kind, read_members
from ..http.responses import HttpAnswer
from ..scheduler.request import Outcome
from ..service.params import ClassifyParams
from ..telemetry.context import RequestContext
from .whole import IN_QUERY, WholeRequest, rows_of

_ABSENT = Raw()


class _Body(Struct):
    """The part of the JSON that may be large, undecoded."""

    instances: Raw


class _Head(Struct, forbid_unknown_fields=True):
    """All of it but the instances, in whose place is null."""

    instances: None
    parameters: dict[str, Any] = {}
    signature_name: Literal["serving_default"] | None = None  # TensorFlow Serving's; a model has one


class _Base64(Struct, forbid_unknown_fields=True):
    b64: Raw


class _Instance(Struct, forbid_unknown_fields=True):
    """One image, in exactly one of these; `image_bytes` holds an object that has `b64`."""

    image_bytes: Raw = _ABSENT
    data: Raw = _ABSENT
    b64: Raw = _ABSENT


class Instances(Payload):
    """A body whose instances are found and not decoded yet."""

    def images(self, max_images: int) -> list[Encoded]:
        """One image an instance. Raises ServiceError `bad_request` where an instance is none, `empty`,
        `too_many_images`."""
        assert isinstance(self.parts, Raw)
        entries = elements(self.parts, max_images, "instances", "too_many_images")
        if not entries:
            raise ServiceError("empty", "the request has no image: no entry in instances")
        return [_image(entry, f"instances[{place}]") for place, entry in enumerate(entries)]


class Predict(WholeRequest):
    """Classify images: JSON with `instances` and `parameters`."""

    def form(self, context: RequestContext) -> PayloadFormat:
        """The body is JSON whatever its type is called: KServe's client says nothing, `curl -d` says it is a form."""
        types = {
            b"content-encoding": context.headers.get(b"content-encoding", b""),
            b"content-type": b"application/json",
        }
        return payload_kind(types)

    def read(self, body: bytes, form: PayloadFormat, content_type: bytes) -> Instances:
        """Find instances and parameters. Raises ServiceError `bad_request`."""
        instances = decoded(body, _Body, 'the body, which must be {"instances": [...]}').instances
        head = decoded(without(body, instances, "the body"), _Head, "the body")
        return Instances(body, form, instances, read_members(head.parameters, ("model", *IN_QUERY)))

    def params(self, asked: dict[str, str], context: RequestContext) -> ClassifyParams:
        """Where nothing else is asked for, the best class alone."""
        few = {} if asked.keys() & {"top_k", "threshold"} else {"top_k": "1"}
        return super().params({**asked, **few}, context)

    def write(self, params: ClassifyParams, context: RequestContext, outcomes: list[Outcome]) -> HttpAnswer:
        """Write one prediction an instance: an object, or a list where there may be several classes or none."""
        rows = [[{"label": label, "score": score} for label, score in row] for row in rows_of(params, outcomes)]
        several = params.top_k > 1 or params.threshold > 0
        predictions = rows if several else [row[0] for row in rows]
        return HttpAnswer(json.dumps({"predictions": predictions}, ensure_ascii=False).encode())


def _image(entry: Raw, where: str) -> Encoded:
    """The image of an instance, or an error in its place where its text is not base64."""
    instance = decoded(entry, _Instance, where)
    named = [name for name in _Instance.__struct_fields__ if len(memoryview(getattr(instance, name)))]
    if len(named) != 1:
        kinds = " or ".join(_Instance.__struct_fields__)
        raise ServiceError("bad_request", f"{where} has {' and '.join(named) or 'no image'}: expected one of {kinds}")
    [name] = named
    text: Raw = getattr(instance, name)
    if name == "image_bytes":
        text = decoded(text, _Base64, f"{where}.image_bytes").b64
    without(entry, text, where)
    try:
        image = from_base64(text)
    except ValueError as error:
        return ServiceError("bad_request", f"{where}.{name} is not base64 text: {error}")
    if (count := count_images(image)) > 1:
        return ServiceError("bad_request", f"{where}.{name} is an array of {count} images: one an instance")
    return split_images(image)[0]
