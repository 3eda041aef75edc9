"""Faults of files: a version that cannot be loaded, a model that is gone, keys that cannot be read."""

import shutil
from pathlib import Path
from typing import Any

from ....server.security.keys import key_block, new_key
from ...serving.ports import free_port
from .fault import BUDGETS, Fault, page, ticket
from .replica import post
from .scene import Scene

NAME, BROKEN, MENDED = "bench", "2", "3"
LOOK_SECONDS = 0.5

_ADMIN = "admin_port"


def repository(scene: Scene) -> dict[str, Any]:
    """One version of the model, in a repository that is looked at."""
    shutil.copytree(scene.bundle, _version(scene, "1"))
    return {"repository": str(scene.folder / "models"), "repository_seconds": LOOK_SECONDS}


def administered(scene: Scene) -> dict[str, Any]:
    """The same, and a port to unload it by."""
    port = free_port()
    (scene.folder / _ADMIN).write_text(str(port), encoding="utf-8")
    return {**repository(scene), "repository_seconds": 0.0, "admin_port": port}


def bring(scene: Scene, number: str, *, broken: bool = False) -> None:
    """A new version, whole at once."""
    coming = scene.folder / "coming"
    shutil.copytree(scene.bundle, coming)
    if broken:
        (coming / "model.safetensors").write_bytes(b"no weights")
    coming.rename(_version(scene, number))


def administer(scene: Scene, verb: str) -> None:
    """Have the model loaded or unloaded; returns once it is."""
    port = int((scene.folder / _ADMIN).read_text(encoding="utf-8"))
    post(f"http://127.0.0.1:{port}/v1/models/{NAME}/{verb}")


def keys(scene: Scene) -> dict[str, Any]:
    """A file with one key, which the requests are sent with."""
    key = new_key()
    scene.headers = (("X-API-Key", key),)
    _good_keys(scene).write_text(key_block("bench", key), encoding="utf-8")
    mend_keys(scene)
    return {"api_keys": str(_keys(scene))}


def mend_keys(scene: Scene) -> None:
    """The file as it was, whole at once."""
    coming = scene.folder / "coming.toml"
    shutil.copyfile(_good_keys(scene), coming)
    coming.rename(_keys(scene))


def break_keys(scene: Scene) -> None:
    """Somebody has edited it in haste."""
    coming = scene.folder / "coming.toml"
    coming.write_text("[[key]\nname = oops\n", encoding="utf-8")
    coming.rename(_keys(scene))


def _version(scene: Scene, number: str) -> Path:
    return scene.folder / "models" / NAME / number


def _keys(scene: Scene) -> Path:
    return scene.folder / "keys.toml"


def _good_keys(scene: Scene) -> Path:
    return scene.folder / "good.toml"


FILE_FAULTS = (
    Fault(
        name="version-broken",
        what="a new version in the repository cannot be loaded",
        undone="a newer one can; the alert lasts its hour all the same",
        fires=(ticket("ModelReloadFailing"),),
        make=lambda scene: bring(scene, BROKEN, broken=True),
        undo=lambda scene: bring(scene, MENDED),
        unharmed=True,
        needs=repository,
    ),
    Fault(
        name="model-unloaded",
        what="the only model is unloaded",
        undone="it is loaded again",
        fires=(ticket("ModelNotReady"), page("ErrorBudgetBurn")),
        make=lambda scene: administer(scene, "unload"),
        undo=lambda scene: administer(scene, "load"),
        may_fire=BUDGETS,
        needs=administered,
    ),
    Fault(
        name="keys-broken",
        what="the file of API keys is no TOML any more",
        undone="it is mended",
        fires=(ticket("FileReloadFailing"),),
        make=break_keys,
        undo=mend_keys,
        unharmed=True,
        needs=keys,
    ),
)
