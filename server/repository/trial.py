"""Opens a bundle in a child process first, which has limits of memory and time: what kills or stalls a child harms no
server. As a script it is the child."""

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ...inference.device import DeviceError, resolve_devices
from ...inference.open import open_model
from ...models.errors import BundleError
from ...models.onnx.openvino_session import user_cache

if TYPE_CHECKING:
    from ..config.settings import Settings

logger = logging.getLogger("milkweed.opening")
_warn_once = functools.cache(logger.warning)


class TrialError(ValueError):
    """A bundle ended the child that opened it, took too long, asked for too much memory, or failed in no known way."""


@contextlib.contextmanager
def noted(path: Path) -> Iterator[bool]:
    """Note on disk that a bundle is opened within the block; yields whether a child should try it first.

    A note that is there already is of a process that ended meanwhile. Where none can be kept, each opening is suspect.
    The note stays after a TrialError, so that no start opens that bundle by itself.
    """
    note, cache = None, user_cache()
    try:
        if cache is None:
            raise FileNotFoundError(2, "there is no home folder")
        (cache.parent / "opening").mkdir(0o700, parents=True, exist_ok=True)
        note = cache.parent / "opening" / hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
        suspect = note.exists()
        note.touch(0o600)
    except OSError as error:
        _warn_once("no note of what is being opened can be kept, so a child tries every bundle: %s", str(error))
        note, suspect = None, True
    try:
        yield suspect
    except TrialError:
        note = None
        raise
    finally:
        if note is not None:
            note.unlink(missing_ok=True)


def try_bundle(name: str, path: Path, settings: "Settings") -> str:
    """Open a bundle in a child process as the settings say, on the first device; its version.

    What is for a GPU is opened on the CPU, in float32: that proves the files, the model and its golden answers, not
    what the GPU makes of them.

    Raises:
        TrialError: the child died, was late, asked for more memory than there is, or failed with an unexpected error.
        BundleError, DeviceError: what else `open_model` raised there, in words of ours: of the bundle, or of this host.
    """
    from ..config.inference_options import inference_options
    from ..telemetry.system_metrics import container_memory

    what, seconds, container = f"model {name} cannot be opened", settings.model_load_timeout_seconds, container_memory()
    options, free = replace(inference_options(settings), device="cpu"), psutil.virtual_memory().available
    if container is not None:
        free = max(0, min(free, container.limit - container.working_set))
    if resolve_devices(settings.device)[0].type != "cpu":
        options = replace(options, dtype="float32", backend="torch", loader="auto", max_batch_size=0)
    try:
        code, said = _run(pickle.dumps((path, options, free)), seconds)
    except subprocess.TimeoutExpired:
        raise TrialError(f"{what}: took longer than {seconds:g} s") from None
    if code or not said:
        why = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        raise TrialError(f"{what}: the process that tried it was ended {why}")
    answer = json.loads(said)
    if "version" in answer:
        return str(answer["version"])
    if answer["memory"]:
        raise TrialError(f"{what}: asked for more than the {free >> 20} MB that are free: {answer['error'][:200]}")
    if answer["kind"]:
        of_host = answer["kind"] in ("BackendError", "DeviceError", "LoaderError")
        raise (DeviceError if of_host else BundleError)(answer["error"])
    logger.error("%s: %s", what, answer["error"])
    raise TrialError(f"{what}: an unexpected error, the log has it")


def is_ours(error: Exception) -> bool:
    """Whether it is a line for the user: a ValueError, unless another library made a class of its own of it."""
    kind = type(error)
    return kind is ValueError or (isinstance(error, ValueError) and kind.__module__.startswith("milkweed."))


def _run(request: bytes, seconds: float) -> tuple[int, bytes]:
    """Run a child; its exit status and what it said. Raises TimeoutExpired once it and its children are killed."""
    command, pipe = [sys.executable, "-P", "-m", "milkweed.server.repository.trial"], subprocess.PIPE
    # A group to kill, but no new session, where Linux would give the child as much CPU as all that serves.
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, process_group=0)
    try:
        said, _ = child.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # in a mount that hangs, not even that ends it
            child.communicate(timeout=5)
        raise
    return child.returncode, said


def _limit(memory_bytes: int) -> None:
    """Forbid this process, the child, to map more memory of its own than so many bytes beyond what it has; let it go
    first where the machine's ends, and together with its parent."""
    os.nice(5)  # it gives way to what serves, but must come to its end within its time
    if sys.platform != "linux":
        return
    import resource

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _answer(request: bytes) -> dict[str, Any]:
    """Open the bundle of a request: its `version`, or the `error`, whether that is for want of `memory`, and the `kind`
    of one whose text is ours, "" of any other."""
    path, options, memory_bytes = pickle.loads(request)
    _limit(memory_bytes)
    try:
        # What fails for want of the child's memory must not be remembered.
        return {"version": open_model(path, replace(options, remembers=False)).config.version}
    except Exception as error:
        kind, text = type(error).__name__ if is_ours(error) else "", str(error)
        # The words of native libraries for a failed allocation differ, but for this one.
        memory = isinstance(error, MemoryError) or "alloc" in text.lower()
        return {"error": text if kind or memory else traceback.format_exc()[-4000:], "memory": memory, "kind": kind}


if __name__ == "__main__":
    stdout = os.dup(1)
    os.dup2(2, 1)  # where native libraries print what they like
    os.write(stdout, json.dumps(_answer(sys.stdin.buffer.read())).encode())
    os._exit(0)  # nothing here is worth taking apart
