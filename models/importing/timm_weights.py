"""Fetches the weights that timm publishes under a name; nothing else in milkweed loads anything from a network."""

from pathlib import Path

from ..architectures.timm_models import timm_weights_repository
from ..errors import CheckpointError
from .unpickling import first_sentence

PREFIX = "timm:"
FILES = ("config.json", "model.safetensors")


def fetch_timm_weights(name: str) -> Path:
    """The Hugging Face folder with the weights of a timm name, from this machine's cache or huggingface.co.

    Only config.json and model.safetensors are fetched: neither can hold a program.

    Args:
        name: an architecture, with the tag of its weights or without for timm's default ones.

    Raises:
        CheckpointError: timm has no such weights, or they are neither cached nor reachable.
        ImportError: huggingface_hub is missing.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{PREFIX}{name} needs the package huggingface_hub: pip install huggingface_hub ({error})"
        ) from error
    repository = timm_weights_repository(name)
    if repository is None:
        raise CheckpointError(f"{PREFIX}{name}: timm publishes no weights of that name")
    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(FILES)))
    except (OSError, ValueError, RuntimeError) as error:  # its own errors and HTTP errors are subclasses of these
        raise CheckpointError(
            f"{PREFIX}{name}: not in this machine's cache, and not to be had from huggingface.co/{repository} "
            f"({first_sentence(error)}): fetch {' and '.join(FILES)} elsewhere and import their folder"
        ) from error
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(f"{PREFIX}{name}: huggingface.co/{repository} has no {missing[0]}")
    return folder
