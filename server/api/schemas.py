"""Defines the shapes of requests and answers for the OpenAPI document; /classify writes its answers by hand."""

from typing import Any, Literal

from pydantic import BaseModel, Field

# A grey pixel as PNG, so that the example can be sent as it is.
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="


class ErrorDetail(BaseModel):
    """What went wrong: a code for programs, a line for people."""

    code: str = Field(examples=["undecodable"])
    message: str = Field(examples=["JPEG of 640x480 px: broken or cut off"])


class ErrorAnswer(BaseModel):
    """Every error that is not about one image of several."""

    error: ErrorDetail
    request_id: str = Field(examples=["9f0c5a4c3e1b4d6e8a7f2b1c0d9e8f7a"])


class Prediction(BaseModel):
    """One class; `score` is its softmax probability, or its sigmoid where the model's `problem_type` is multi-label."""

    index: int = Field(ge=0, examples=[0])
    id: str = Field(examples=["n01440764"])
    label: str = Field(examples=["tench"])
    score: float = Field(ge=0, le=1, examples=[0.93])


class Predictions(BaseModel):
    """The classes of one image, best first."""

    predictions: list[Prediction]
    sure: bool | None = Field(
        default=None, description="whether the best score reaches the model's `confidence`; left out where it has none"
    )
    embedding: list[float] | str | None = Field(default=None, description="where it is asked for; base64 of float32")


class ImageError(BaseModel):
    """Why one image has no classes."""

    error: ErrorDetail


class ClassifyAnswer(BaseModel):
    """One entry of `results` for each image, in order: predictions or an error, never both."""

    model: str = Field(examples=["demo"])
    version: str = Field(examples=["3f2a91c04b7d"])
    head: str | None = Field(default=None, description="and head_version: left out where the model itself answers")
    head_version: str | None = None
    request_id: str = Field(examples=["9f0c5a4c3e1b4d6e8a7f2b1c0d9e8f7a"])
    results: list[Predictions | ImageError]


class ClassifyFailure(ClassifyAnswer):
    """No image succeeded: the first one's error, and every one's in `results`."""

    error: ErrorDetail


class ClassifyJson(BaseModel):
    """The JSON form of a request."""

    images: list[str] = Field(
        min_length=1,
        description="encoded images in base64, bare or as data: URLs; https: URLs of hosts that fetch_hosts names",
        examples=[[_PIXEL]],
    )
    model: str | None = None
    top_k: int | None = None
    threshold: float | None = Field(default=None, ge=0, le=1)
    embedding: bool | Literal["base64"] | None = None
    head: str | None = None


class Health(BaseModel):
    """A probe that is passed."""

    status: str = Field(examples=["ok"])


class KernelPlan(BaseModel):
    """What runs one part of the model at one batch size; `cuts` are its segments, empty where it is one piece."""

    batch: int
    cuts: str = Field(examples=["0b0011"])
    engines: list[str] = Field(examples=[["torch", "native_mlp:2", "native_attention:1"]])
    microseconds: float | None = Field(description="measured at start or before; null where it never was")
    source: Literal["measured", "cached", "untuned"]


class KernelPart(BaseModel):
    """Equal parts of the model, their plans, and the engines made for them that run nothing of them."""

    kind: str = Field(examples=["attention", "mlp", "add_layernorm", "branch", "performer", "qkv", "proj", "merge"])
    shapes: str
    tokens: int
    count: int
    plans: list[KernelPlan]
    refused: dict[str, str]


class KernelFallback(BaseModel):
    """Something that does not run as it was meant to."""

    kind: str = Field(examples=["library", "block", "engine"])
    reason: str


class Fusion(BaseModel):
    """What became of the model's blocks."""

    native: str = Field(description="the state of the compiled kernels")
    parts: list[KernelPart]
    fallbacks: list[KernelFallback]
    seconds: float = Field(description="that it took at start, measuring included")
    quarantined: list[str] = Field(description="kernels that MILKWEED_QUARANTINE keeps from running")
    int8_notes: list[str] = Field(
        default_factory=list,
        description="of an int8 bundle: what runs in 16 bits and why, and how many inputs saturate",
    )


class CudaGraphs(BaseModel):
    """The batch sizes that the forward is captured for, or why it is not."""

    batch_sizes: list[int]
    reason: str | None


class KernelPlans(BaseModel):
    """What a GPU runs; null where it was turned off."""

    fusion: Fusion | None
    cuda_graphs: CudaGraphs | None


class ModelHead(BaseModel):
    """A classifier on the model's embedding, which answers where a request names it."""

    name: str = Field(examples=["birds"])
    version: str = Field(description="hash of its file")
    num_classes: int
    model_version: str | None = Field(description="version of the model that it was fitted on, if known")


class Limits(BaseModel):
    """What counts for requests to a model."""

    max_queue_images: int = Field(description="images that wait, of all versions")
    max_images_per_request: int
    timeout_ms: int = Field(description="where a request says nothing")
    top_k: int = Field(description="where a request says nothing")


class DenseTime(BaseModel):
    """The dense model in float32, where it is fastest."""

    computed_by: str = Field(examples=["openvino float32"])
    ms: float = Field(description="an image")


class PeerSpeedup(BaseModel):
    """The fastest dense model in bfloat16 by another backend than milkweed's."""

    computed_by: str = Field(examples=["openvino bfloat16"])
    speedup: float = Field(description="of the chosen model over it, at the batch size where that is least")


Interval = tuple[float, float, float]
"""A mean over the images, and the ends of its 95 % interval."""


class Tried(BaseModel):
    """A model that a search measured."""

    name: str = Field(examples=["class token last, int8"])
    computed_by: str = Field(examples=["openvino bfloat16"])
    ms: float = Field(description="an image")
    speedup: float = Field(description="over the dense model, at the batch size where that is least")
    over_peer: float | None = Field(description="the same over `peer`; null where none was measured")
    kl: Interval = Field(description="to the dense model's answers, nats: the mean and the ends of its 95 % interval")
    agreement: Interval = Field(description="percent of images with the dense model's answer")
    expected_change: Interval | None = Field(
        description="points of top-1, by how sure the dense model is of its answers; null in old records"
    )
    top1_change: Interval | None = Field(description="points; null where the images had no labels")
    bytes: int
    on_front: bool = Field(description="no other one is both faster and nearer to the dense model")
    chosen: bool


class SearchSummary(BaseModel):
    """What `milkweed compress --images` measured when it made the model, at one batch size."""

    batch: int = Field(description="images of a forward: 1 where that was measured")
    images: int = Field(description="of the held-out set")
    measured_on: str = Field(examples=["AMD EPYC, 2 cores"], description="empty where that is not on record")
    dense: DenseTime
    peer: PeerSpeedup | None = Field(description="null where none was measured")
    models: list[Tried] = Field(description="the fastest first")


class Shadow(BaseModel):
    """What was seen of a shadow beside its model since both were loaded, in this process."""

    of: str
    images: int = Field(description="that were compared; one that only the shadow failed is a disagreement")
    agreement: Interval | None = Field(description="share with the same best class; its ends by Wilson; null of none")
    kl: float | None = Field(description="mean divergence of the classes from those of `of`, nats; null of none")
    since: str = Field(examples=["2026-11-29T12:00:00+00:00"])
    off: str | None = Field(description="why nothing is compared, if so")


class Model(BaseModel):
    """A served model."""

    name: str
    version: str
    number: str | None = Field(description="of the version, in a repository")
    ready: bool
    default: bool = Field(description="answers requests that name no model")
    arch: str
    num_classes: int
    embedding_width: int = Field(description="values of an embedding; 0 where the backend gives none")
    problem_type: Literal["single_label_classification", "multi_label_classification", "feature_extraction"] = Field(
        description="scores are the softmax of all classes; multi_label_classification: the sigmoid of each; "
        "feature_extraction: there are none, the model gives embeddings alone"
    )
    labels: list[str] | None = Field(description="of the classes, in order; null where they are more than 100")
    preprocess: dict[str, Any]
    confidence: dict[str, Any] | None = Field(
        description="the score from which on an answer is sure, and what that tells apart on held-out images, or null"
    )
    monarch_layers: int
    storage: dict[str, int] = Field(
        description="layers whose weights the bundle's file holds in fewer bits than float32, by type",
        examples=[{"int8": 48, "bfloat16": 2}],
    )
    graph: Literal["float32", "int8"] | None = Field(
        description="precision of the bundle's own graph, where the backend computes that; null where it computes the "
        "bundle's weights"
    )
    parameter_bytes: dict[str, int] = Field(
        examples=[{"dense_equivalent": 4_600_000, "resident": 1_900_000, "on_disk": 1_910_000}]
    )
    metrics: dict[str, Any] = Field(description="what was measured, as the bundle records it; of a search see `search`")
    search: SearchSummary | None = Field(description="null where no search made the model")
    device: str
    dtype: str
    backend: Literal["torch", "onnxruntime", "openvino"] = Field(description="what computes the forward")
    backend_reason: str = Field(
        examples=["speedup over torch float32, batches of 1 and 8: torch bfloat16 1.61, onnxruntime float32 1.21"]
    )
    loader: str
    kernels: str = Field(description="what the layers run on, in a line")
    kernel_plans: KernelPlans | None = Field(description="of a GPU's forward; null on a CPU")
    lanes: str
    max_batch_size: int
    load_seconds: float
    warmup_seconds: float
    limits: Limits
    heads: list[ModelHead]
    shadow: Shadow | None = Field(description="null of a model that is no shadow")


class Alias(BaseModel):
    """A name that stands for a model, or one version of it."""

    name: str = Field(examples=["production"])
    model: str
    version: str | None = Field(description="number or bundle version; null for the one that answers by default")


class ModelList(BaseModel):
    """All served models, the default one first."""

    models: list[Model]
    aliases: list[Alias]
