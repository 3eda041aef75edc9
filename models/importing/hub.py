"""Fetches weights that are named, from the Hugging Face hub; nothing else in milkweed loads anything from a network."""

import errno
import re
from pathlib import Path

from ...kernels.installation import install_command
from ..architectures.timm_models import timm_weights_repository
from ..errors import CheckpointError
from .unpickling import first_sentence

TIMM, HUB = "timm:", "hf://"
FILES = ("config.json", "model.safetensors")
_SHARDS = ("model.safetensors.index.json", "model-?????-of-?????.safetensors")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-?????-of-?????.bin")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_REPOSITORY = re.compile(r"hf://?(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
"""A path that is made of a name has one slash less."""


def is_named(source: str) -> bool:
    """Whether a checkpoint is a name on the hub, `timm:NAME` or `hf://ORG/REPO[@REVISION]`, and no file."""
    return source.startswith((TIMM, "hf:/"))


def repository_of(source: str) -> tuple[str, str | None]:
    """The repository on huggingface.co that a name stands for, and the revision where it says one.

    Raises:
        CheckpointError: timm publishes no weights of that name, or it is no name of a repository.
    """
    if source.startswith(TIMM):
        repository = timm_weights_repository(source.removeprefix(TIMM))
        if repository is None:
            raise CheckpointError(f"{source}: timm publishes no weights of that name")
        return repository, None
    match = _REPOSITORY.fullmatch(source)
    if match is None:
        raise CheckpointError(f"{source}: must be hf://ORG/REPO or hf://ORG/REPO@REVISION")
    return match["name"], match["revision"]


def fetch_weights(source: str) -> Path:
    """The folder with the files of a name, from this machine's cache or huggingface.co; its name is the commit.

    Of timm's weights and wherever a repository has safetensors, only files are fetched that cannot hold a program.

    Raises:
        CheckpointError: no such weights, or they are neither cached nor reachable.
        ImportError: huggingface_hub is missing.
    """
    repository, revision = repository_of(source)
    if source.startswith(TIMM):
        folder = _snapshot(source, repository, None, FILES)
        missing = next((file for file in FILES if not (folder / file).is_file()), None)
    else:
        described = ("config.json", "preprocessor_config.json")
        folder = _snapshot(source, repository, revision, (*described, "model.safetensors", *_SHARDS))
        if not any(folder.glob("model*.safetensors")):
            folder = _snapshot(source, repository, revision, (*described, *_PICKLED))
        held = any(folder.glob("model*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
        missing = None if held else f"model.safetensors and no pytorch_model.bin{_others(repository, revision)}"
    if missing:
        raise CheckpointError(f"{source}: huggingface.co/{repository} has no {missing}")
    return folder


def _snapshot(source: str, repository: str, revision: str | None, files: tuple[str, ...]) -> Path:
    """The folder with the files of these names, as far as the repository has them."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{source} needs the package huggingface_hub: {install_command('torch')} ({error})"
        ) from error
    where = f"huggingface.co/{repository}"
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(files)))
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{source}: {where} is gated: accept its terms there, and set HF_TOKEN to a token of your account"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{source}: {where} has no revision {revision}") from error
    except (OSError, ValueError, RuntimeError) as error:  # its own errors and HTTP errors are subclasses of these
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise CheckpointError(f"{source}: cannot be kept in this machine's cache: {error.strerror}") from error
        raise CheckpointError(
            f"{source}: not in this machine's cache, and not to be had from {where} "
            f"({first_sentence(error)}): fetch {' and '.join(FILES)} elsewhere and import their folder"
        ) from error


def _others(repository: str, revision: str | None) -> str:
    """What else a repository has that may be weights, for a message."""
    from huggingface_hub import HfApi

    try:
        files = [name for name in HfApi().list_repo_files(repository, revision=revision) if name.endswith(_WEIGHTS)]
    except (OSError, ValueError, RuntimeError):
        return ""
    named = f"{', '.join(files[:3])}{', ...' if files[3:] else ''}"
    return f": download one of {named} and import that file" if files else ""
