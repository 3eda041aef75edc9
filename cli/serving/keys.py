"""`milkweed keys` makes API keys for `milkweed serve --api-keys FILE`."""

import re
from typing import Annotated

import typer

from ..errors import WRONG_USAGE, CommandError
from ..help import page
from ..options import Json
from ..output import note, print_json

KeyName = Annotated[
    str, typer.Argument(metavar="NAME", help="Who will use it: letters, digits, - and _.", show_default=False)
]


def keys_app() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(
        help="Make API keys for `milkweed serve --api-keys FILE`.\n\n"
        "\b\nExample:\n  milkweed keys new camera-7 >> keys.toml",
        rich_markup_mode=None,
    )
    app.callback()(_keys)
    app.command("new", cls=page())(new)
    return app


def _keys() -> None:
    """Make API keys for `milkweed serve --api-keys FILE`."""


def new(name: KeyName, json: Json = False) -> None:
    """Make a key, and its entry for the file of keys.

    The entry goes to stdout, the key itself to stderr, this once. The file holds a hash, of which the key cannot be
    told. An entry may have limits: requests_per_second, request_burst, images_per_second, image_burst. A name may
    have several entries, to change a key without a gap.

    \b
    Example:
      milkweed keys new camera-7 >> keys.toml
    """
    from ...server.security.keys import NAME_PATTERN, hash_key, key_block, new_key

    if not re.fullmatch(NAME_PATTERN, name):
        raise CommandError(f"NAME {name!r}: must be 1 to 64 letters, digits, - or _, no sign first", WRONG_USAGE)
    key = new_key()
    if json:
        print_json({"name": name, "key": key, "sha256": hash_key(key.encode()).hex()})
        return
    print(key_block(name, key))
    note(f"the key of {name}, which is kept nowhere: {key}")
