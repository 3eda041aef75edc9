"""Every command of README.md and docs/ is run, or stands in left_out.py with the reason and is checked without that."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.forked import Forker
from .blocks import PAGES, ROOT, Block, blocks_of
from .left_out import reason
from .parsed import check
from .placeholders import make_placeholders
from .walk import Walk, walking

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl, as the pages do")

SHELLS = ("sh", "console", "bash")

# Pages whose first commands ask a server that runs already, with the defaults.
ASK = {"docs/client.md", "docs/kubernetes.md", "docs/oip.md", "docs/ray.md"}

# These ask a server with the settings that the page says.
ASK_OTHERS = {"docs/serving.md": "milkweed serve --repository models/ --keep-versions 2 --admin-port 8002"}

# Pages whose commands are typed in the repository itself; what they write lands beside.
IN_THE_REPOSITORY = {"docs/start.md"}

# What has to be in what the commands of a block print, by a command of the block.
PRINTS = {
    "curl -F image=@docs/pictures/ship.jpg": r'"version": "3a90dd00781b".*"label": "ship", "score": 0\.(89|9[01])',
    "curl -i --data-binary @docs/pictures/ship.jpg": r"(?si)server-timing: receive;dur=.*total;dur=.*ship",
    "curl -F good=@docs/pictures/ship.jpg": r'"label": "ship", "score": 0\.(89|9[01]).*"code": "unsupported_format"',
    ".venv/bin/milkweed inspect models/demo --recipe": r'"arch": "vitae_basic",\s+"quantization": {',
}

# Python that a page's own begins behind.
BEFORE_PYTHON = {
    "docs/compression.md": """
from pathlib import Path
from milkweed.compress import timing
timing.SECONDS, timing.TURN_SECONDS = 0.01, 0.001
Path("monarch.json").write_text('{"structure": {"nblocks": 4}}')  # the page's own is trained for minutes
""",
    "docs/training.md": """
from pathlib import Path
import torch
from milkweed.models import create_model
shape = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
model = create_model("deit_tiny_patch16_224", num_classes=3, **shape)
images, targets = torch.randn(128, 3, 32, 32), torch.randint(3, (128,))
held_out = [(images, targets)]
""",
    "docs/oip.md": None,
    "docs/heads.md": None,
}
"""None stands for code that is parsed and not run: the clients of oip.md, which tests/e2e/oip_clients.py runs, and
open_clip, which would fetch its weights."""


def shells(page: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.language in SHELLS]


@pytest.fixture(scope="module")
def placeholders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("placeholders")
    make_placeholders(folder)
    return folder


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, forker: Forker, placeholders: Path) -> Iterator[Walk]:
    """What stands for servers that no test starts: a demo server for all such pages."""
    with walking(tmp_path_factory.mktemp("standing"), forker, placeholders) as walk:
        walk.command("milkweed serve")
        yield walk


@pytest.fixture
def walk(tmp_path: Path, forker: Forker, placeholders: Path) -> Iterator[Walk]:
    with walking(tmp_path, forker, placeholders) as walk:
        yield walk


@pytest.mark.parametrize("page", [page for page in PAGES if shells(page)])
@pytest.mark.slow
def test_the_commands_of_a_page_do_what_it_says(page: str, walk: Walk, request: pytest.FixtureRequest) -> None:
    runs = [(block, [command for command in block.commands if reason(command) is None]) for block in shells(page)]
    _stand_where_it_is_read(page, walk, request)
    for block, commands in runs:
        if page in ASK_OTHERS and "localhost" in block.text and walk.server is None:
            walk.block(Block(page, 0, "sh", ASK_OTHERS[page]), [ASK_OTHERS[page]])
        printed = walk.block(block, commands)
        for command, pattern in PRINTS.items():
            if any(each.startswith(command) for each in commands):
                assert re.search(pattern, printed), printed


def test_what_is_not_run_is_there(walk: Walk) -> None:
    for page in PAGES:
        for block in shells(page):
            for command in block.commands:
                if reason(command) is not None:
                    try:
                        check(command, walk.usage)
                    except BaseException as error:
                        error.add_note(f"{page}, below line {block.line}: {command}")
                        raise


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "python" for b in blocks_of(page))])
@pytest.mark.slow_beyond(1)
def test_the_python_of_a_page_runs(page: str, walk: Walk, request: pytest.FixtureRequest) -> None:
    """All blocks in one program: later ones go on from earlier ones."""
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    for block in blocks:
        # A page may show what stands in a coroutine.
        compile(block.text, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    before = BEFORE_PYTHON.get(page, "")
    if before is None:
        return
    _stand_where_it_is_read(page, walk, request)
    for block in blocks:
        walk.block(block, [])
    walk.python(before + "\n".join(block.text for block in blocks))


def _stand_where_it_is_read(page: str, walk: Walk, request: pytest.FixtureRequest) -> None:
    """The files of the repository that a page speaks of, and the server that it takes for granted."""
    for name in ("docs", "README.md", "models") if page in IN_THE_REPOSITORY else ("docs", "README.md"):
        (walk.folder / name).symlink_to(ROOT / name)
    if page in ASK:
        walk.ports = request.getfixturevalue("standing").ports
