"""Answers POST /embed and POST /v1/embeddings, which turn images into embeddings."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import Raw, Struct

from ...inference.results import TopClasses
from ..errors import ServiceError
from ..http.client_json import decoded, elements
from ..http.parameters import read_choice
from ..http.payload import Encoded, PayloadFormat, image_of
from ..http.responses import JSON_TYPE, HttpAnswer
from ..scheduler.request import Outcome
from ..service.embedding_format import ENCODINGS, EmbeddingFormat
from ..service.inference_handler import Query, image_error
from ..service.params import ClassifyParams, check_embedding
from ..telemetry.context import RequestContext
from .classify import Classify, accepts

NPY_TYPE = b"application/x-npy"


class EmbedImages(Classify):
    """POST /embed: bodies and parameters as /classify takes them, embeddings in place of classes."""

    parameters: Sequence[str] = ("model", "normalize", "encoding", "dtype")
    classes = False

    def params(self, asked: dict[str, str], context: RequestContext) -> ClassifyParams:
        """What the parameters and headers ask for. Raises ServiceError `no_embedding`, and as `read_params`."""
        named = super().params({name: asked[name] for name in asked.keys() & {"model"}}, context)
        form = EmbeddingFormat(
            read_choice("normalize", asked.get("normalize"), ("false", "true")) == "true",
            "base64" if read_choice("encoding", asked.get("encoding"), ENCODINGS) == "base64" else "float",
        )
        dtype = read_choice("dtype", asked.get("dtype"), ("float32", "float16"))
        if dtype != "float32" and not accepts(context.headers, NPY_TYPE):
            raise ServiceError("bad_request", f"dtype is {dtype!r}: only an answer as {NPY_TYPE.decode()} has it")
        check_embedding(named.model)
        return replace(named, embedding=form, classes=False, top_k=1, dtype=dtype)

    def query(self, params: ClassifyParams, context: RequestContext, images: Any) -> Query[HttpAnswer | None]:
        """What the body brought; an array of all embeddings is written where that is accepted."""
        as_array = accepts(context.headers, NPY_TYPE)  # which has no place for an error
        return Query(images, partial(_npy if as_array else self.write, params, context), whole=as_array)

    def opening(self, params: ClassifyParams) -> bytes:
        """The beginning of an answer: the width, and what /classify has."""
        return b'{"width": %d, %b' % (params.model.embedding_width, params.opening_json[1:])


def _npy(params: ClassifyParams, context: RequestContext, outcomes: list[Outcome]) -> HttpAnswer:
    """All embeddings as one array (n, width)."""
    rows = _rows(params, outcomes)
    file = io.BytesIO()
    np.save(file, np.stack(rows).astype(params.dtype))
    return HttpAnswer(file.getvalue(), ((b"content-type", NPY_TYPE),))


def _rows(params: ClassifyParams, outcomes: list[Outcome]) -> list[Any]:
    """The embedding of every image. Raises ServiceError with the first that has none."""
    form, rows = params.embedding or EmbeddingFormat(), []
    for index, outcome in enumerate(outcomes):
        if not isinstance(outcome, TopClasses):
            raise image_error(outcome, index, len(outcomes))
        rows.append(form.values(outcome.embedding))
    return rows


class _Ask(Struct, forbid_unknown_fields=True):
    """A request for embeddings as OpenAI's clients send it; images are `data:` URLs, or objects, as infinity and SGLang
    take them."""

    input: Raw
    model: str | None = None
    modality: str | None = None
    encoding_format: str | None = None
    user: str | None = None
    dimensions: int | None = None


class _ImageOf(Struct, forbid_unknown_fields=True):
    image: Raw


class _Input:
    """The images of such a request, as `Payload` has those of others."""

    form: PayloadFormat = "json"

    def __init__(self, body: bytes) -> None:
        self.body, ask = body, decoded(body, _Ask, "the body")
        if ask.modality not in (None, "image"):
            raise ServiceError("bad_request", f"modality is {ask.modality[:40]!r}: only image is served")
        if ask.dimensions is not None:
            raise ServiceError("bad_request", f"dimensions is {ask.dimensions}: a model has one width")
        asked = {"model": ask.model, "encoding": ask.encoding_format}
        self.asked = {name: value for name, value in asked.items() if value is not None}
        self._input = ask.input

    def images(self, most: int) -> list[Encoded]:
        """The images in order; raises ServiceError as `Payload.images`."""
        single = memoryview(self._input)[0] != ord("[")
        entries = [self._input] if single else elements(self._input, most, "input", "too_many_images")
        if not entries:
            raise ServiceError("empty", "the request has no image: no entry in input")
        return [image_of(_inside(entry, place), f"input[{place}]") for place, entry in enumerate(entries)]


def _inside(entry: Raw, place: int) -> Raw:
    if memoryview(entry)[0] != ord("{"):
        return entry
    return decoded(entry, _ImageOf, f"input[{place}]").image


class OpenAiEmbeddings(EmbedImages):
    """POST /v1/embeddings: the request and the answer of OpenAI's API, with images for input."""

    streams, parameters = False, ()

    def read(self, body: bytes, form: PayloadFormat, content_type: bytes) -> Any:
        """Find the images. Raises ServiceError `unsupported_format`, `bad_request`."""
        if form != "json":
            raise ServiceError("unsupported_format", "this route takes application/json")
        return _Input(body)

    def query(self, params: ClassifyParams, context: RequestContext, images: Any) -> Query[HttpAnswer | None]:
        """What the body brought, answered as OpenAI's API does."""
        return Query(images, partial(_openai, params), whole=True)


def _openai(params: ClassifyParams, outcomes: list[Outcome]) -> HttpAnswer:
    form, _ = params.embedding or EmbeddingFormat(), _rows(params, outcomes)
    data = b", ".join(
        b'{"object": "embedding", "index": %d, "embedding": %b}' % (place, form.json(outcome.embedding))
        for place, outcome in enumerate(outcomes)
        if isinstance(outcome, TopClasses)
    )
    name = json.dumps(params.model.name, ensure_ascii=False).encode()
    usage = b'"usage": {"prompt_tokens": 0, "total_tokens": 0}'
    return HttpAnswer(b'{"object": "list", "data": [%b], "model": %b, %b}' % (data, name, usage), (JSON_TYPE,))
