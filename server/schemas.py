"""The shapes of what the service says, for its OpenAPI document; /classify writes its answers by hand."""

from typing import Any

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    """What went wrong: a code for programs, a line for people."""

    code: str = Field(examples=["undecodable"])
    message: str = Field(examples=["JPEG of 640x480 px: broken or cut off"])


class ErrorAnswer(BaseModel):
    """Every error that is not about one image of several."""

    error: ErrorDetail
    request_id: str = Field(examples=["9f0c5a4c3e1b4d6e8a7f2b1c0d9e8f7a"])


class Prediction(BaseModel):
    """One class; `score` is its softmax probability."""

    index: int = Field(ge=0, examples=[0])
    id: str = Field(examples=["n01440764"])
    label: str = Field(examples=["tench"])
    score: float = Field(ge=0, le=1, examples=[0.93])


class Predictions(BaseModel):
    """The classes of one image, best first."""

    predictions: list[Prediction]


class ImageError(BaseModel):
    """Why one image has no classes."""

    error: ErrorDetail


class ClassifyAnswer(BaseModel):
    """One entry of `results` for each image, in order: predictions or an error, never both."""

    model: str = Field(examples=["demo"])
    version: str = Field(examples=["3f2a91c04b7d"])
    request_id: str = Field(examples=["9f0c5a4c3e1b4d6e8a7f2b1c0d9e8f7a"])
    results: list[Predictions | ImageError]


class ClassifyFailure(ClassifyAnswer):
    """No image succeeded: the first one's error, and every one's in `results`."""

    error: ErrorDetail


class ClassifyJson(BaseModel):
    """The JSON form of a request."""

    images: list[str] = Field(min_length=1, description="encoded images in base64", examples=[["/9j/4AAQSkZJ..."]])


class Health(BaseModel):
    """A probe that is passed."""

    status: str = Field(examples=["ok"])


class Model(BaseModel):
    """A served model."""

    name: str
    version: str
    ready: bool
    default: bool = Field(description="answers requests that name no model")
    arch: str
    num_classes: int
    preprocess: dict[str, Any]
    monarch_layers: int
    parameter_bytes: dict[str, int] = Field(
        examples=[{"dense_equivalent": 4_600_000, "resident": 1_900_000, "on_disk": 1_910_000}]
    )
    metrics: dict[str, Any] = Field(description="what was measured, as the bundle records it")
    device: str
    dtype: str
    loader: str
    kernels: str
    lanes: str
    max_batch_size: int
    load_seconds: float
    warmup_seconds: float


class ModelList(BaseModel):
    """All served models, the default one first."""

    models: list[Model]
