"""Clients of a running milkweed server: images in, typed answers out. They need httpx and the standard library only."""

from .answers import Answer, Model, Prediction
from .asynchronous import AsyncClient
from .errors import (
    BadAnswer,
    BadRequest,
    DeadlineExceeded,
    ImageRefused,
    MilkweedError,
    NoAnswer,
    RateLimited,
    ServerFault,
    Unauthorized,
    Unavailable,
    UnknownModel,
)
from .images import Image
from .synchronous import Client

__all__ = [
    "Answer",
    "AsyncClient",
    "BadAnswer",
    "BadRequest",
    "Client",
    "DeadlineExceeded",
    "Image",
    "ImageRefused",
    "MilkweedError",
    "Model",
    "NoAnswer",
    "Prediction",
    "RateLimited",
    "ServerFault",
    "Unauthorized",
    "Unavailable",
    "UnknownModel",
]
