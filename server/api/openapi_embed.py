"""Describes POST /embed and POST /v1/embeddings for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from .schemas import ImageError


class Embedding(BaseModel):
    """What the model's classifier reads of one image, `width` values; or base64 of them as float32, little-endian."""

    embedding: list[float] | str


class EmbedAnswer(BaseModel):
    """One entry of `results` for each image, in order: an embedding or an error, never both."""

    width: int = Field(examples=[192])
    model: str = Field(examples=["demo"])
    version: str = Field(examples=["3f2a91c04b7d"])
    request_id: str = Field(examples=["9f0c5a4c3e1b4d6e8a7f2b1c0d9e8f7a"])
    results: list[Embedding | ImageError]


class InputImage(BaseModel):
    """An image as infinity and SGLang take it."""

    image: str = Field(description="a data: URL, or base64")


class EmbeddingsJson(BaseModel):
    """A request of OpenAI's embeddings API, with images for input."""

    input: str | InputImage | list[str | InputImage] = Field(description="data: URLs, or base64")
    model: str | None = None
    modality: Literal["image"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = Field(default=None, description="is ignored")


class EmbeddingRow(BaseModel):
    """The embedding of one image."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(BaseModel):
    """The answer of that API; images have no tokens."""

    object: Literal["list"]
    data: list[EmbeddingRow]
    model: str
    usage: dict[str, int]


EMBED_SCHEMAS: tuple[type[BaseModel], ...] = (EmbedAnswer, EmbeddingsJson, EmbeddingsAnswer)

_EMBED = """Embeddings of one image or several: what the model's classifier reads.

Bodies are those of `/classify`. With `Accept: application/x-npy` the answer is a numpy array (n, width), and a bad
image fails the request; with `Accept: application/x-ndjson` it is a line for each image."""
_OPENAI = "OpenAI's embeddings API, with images as `data:` URLs for input. A bad image fails the request."


def embed_paths(classify: dict[str, Any]) -> dict[str, Any]:
    """Describe both routes.

    Args:
        classify: the description of POST /classify, whose bodies, headers and refusals they share.
    """
    headers = [parameter for parameter in classify["parameters"] if parameter["in"] == "header"]
    words = (
        ("model", "which of the served models, or an alias; default: the first", {"type": "string"}),
        ("normalize", "scale embeddings to length 1", {"type": "boolean", "default": False}),
        ("encoding", "how JSON has an embedding", {"enum": ["float", "base64"], "default": "float"}),
        ("dtype", "of an array", {"enum": ["float32", "float16"], "default": "float32"}),
    )
    query = [
        {"in": "query", "name": name, "required": False, "description": text, "schema": schema}
        for name, text, schema in words
    ]
    body = {"required": True, "content": {"application/json": {"schema": _schema(EmbeddingsJson)}}}
    openai = {"parameters": headers, "requestBody": body}
    return {
        "/embed": {"post": _operation(classify, "embed", _EMBED, EmbedAnswer, parameters=query + headers)},
        "/v1/embeddings": {"post": _operation(classify, "v1_embeddings", _OPENAI, EmbeddingsAnswer, **openai)},
    }


def _operation(
    classify: dict[str, Any], name: str, description: str, answer: type[BaseModel], **changes: Any
) -> dict[str, Any]:
    answered = {**classify["responses"]["200"], "content": {"application/json": {"schema": _schema(answer)}}}
    about = {"tags": ["embed"], "summary": "Embed images", "description": description, "operationId": name}
    return {**classify, **about, **changes, "responses": {**classify["responses"], "200": answered}}


def _schema(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
