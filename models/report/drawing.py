"""Draws figures in one style: as SVG inside a page and as pictures in files. Only it imports matplotlib.

The same figure gives the same bytes: it holds no date and no random id. In a page the colours become the page's CSS
variables, so that one drawing serves light and dark.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from ...kernels.installation import install_command

PAGE, PICTURE = 440, 640
"""Pixels that a drawing is wide: in a page, where two have room side by side and one on a phone; in a file."""
INK, MUTED, GRID, PAPER = "#1a1a1a", "#5c5c5c", "#dddddd", "#ffffff"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours, which colour-blind eyes tell apart; the second marks what was chosen."""

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "card"}
_VARIABLES |= {color: f"series-{place}" for place, color in enumerate(SERIES, 1)}
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "legend.labelcolor", "text.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon", "text.parse_math"), False),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 11),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "font.size": 12,
    "grid.color": GRID,
    "svg.fonttype": "none",
}
_POINTS_PER_INCH = 72
_PNG_SCALE = 2
"""Pixels of a PNG for one of the drawing, so that it is sharp on a fine screen."""
_METADATA = {".svg": dict.fromkeys(("Date", "Creator", "Type", "Format")), ".png": {"Software": None}}
"""Members that are left out: which program made a file, and when, would make the same figure another file."""


@contextmanager
def style(salt: str = "milkweed") -> Iterator[None]:
    """Figures inside are drawn in our style, whatever the user's matplotlibrc says.

    Args:
        salt: names the drawing, so that ids of two drawings in one page differ.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        yield


def figure(width_px: int, height_px: int) -> Any:
    """An empty figure, laid out so that nothing is cut off."""
    from matplotlib.figure import Figure

    inches = (width_px / _POINTS_PER_INCH, height_px / _POINTS_PER_INCH)
    return Figure(figsize=inches, dpi=_POINTS_PER_INCH, layout="constrained", facecolor=PAPER)


def save_picture(draw: Callable[[], Any], path: Path) -> Path:
    """Write a figure, drawn in our style; nothing is written where that fails.

    Raises:
        ValueError: the path ends in neither .svg nor .png, or whatever `draw` has to say.
        ImportError: matplotlib is not installed.
    """
    if path.suffix not in _METADATA:
        raise ValueError(f"a picture's name must end in {' or '.join(_METADATA)}, not {path.suffix!r}")
    with style():
        content = _saved(draw(), path.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def add_tooltip(artist: Any, text: str) -> None:
    """Give an artist a text that shows when a pointer rests on it in a page."""
    artist.set_gid(f"tooltip-{text}")


def to_svg(drawn: Any, description: str) -> str:
    """The figure as an <svg> element of a page; `description` is for those who cannot see it."""
    drawn.set_facecolor("none")
    svg = _saved(drawn, ".svg").decode()
    width, height = drawn.get_size_inches() * _POINTS_PER_INCH
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(description)}">'
    svg = re.sub(r".*?<svg.*?>", lambda _: head, svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="tooltip-([^"]*)">', r"<g><title>\1</title>", svg)
    # Ids of groups repeat from drawing to drawing and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return re.sub("|".join(_VARIABLES), lambda color: f"var(--{_VARIABLES[color[0]]})", svg)


def require(package: str) -> Any:
    """Import a package of the extra `train`.

    Raises:
        ImportError: it is not installed; says how to.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"reports and plots need the package {package}: {install_command('train')} ({error})"
        ) from error


def _saved(drawn: Any, suffix: str) -> bytes:
    """A file's content; places are rounded to a ten-thousandth, since the last bits of a layout differ by run."""
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    for axis in drawn.axes:
        axis.set_position([round(value, 4) for value in axis.get_position().bounds])
    out = io.BytesIO()
    drawn.savefig(out, format=suffix[1:], dpi=_PNG_SCALE * _POINTS_PER_INCH, metadata=_METADATA[suffix])
    return out.getvalue()
