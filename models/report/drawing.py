"""Draws figures in one style: as SVG inside a page and as pictures in files. Only it imports matplotlib.

The same figure gives the same bytes: it holds no date and no random id. In a page the colours become the page's CSS
variables, so that one drawing serves light and dark.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Palette:
    """The colours of a drawing, which colour-blind eyes tell apart too (Okabe and Ito's)."""

    ink: str = "#1a1a1a"
    muted: str = "#5c5c5c"
    grid: str = "#dddddd"
    paper: str = "#ffffff"
    series: tuple[str, ...] = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

    @property
    def accent(self) -> str:
        return self.series[0]

    @property
    def chosen(self) -> str:
        return self.series[1]


@dataclass(frozen=True)
class Canvas:
    """How wide a figure is, in pixels, and in which colours."""

    width_px: int
    palette: Palette = Palette()


PAGE, PICTURE = Canvas(440), Canvas(640)
"""A drawing in a page, where two have room side by side and one on a phone; a picture in a file."""

_VARIABLES = {
    **{getattr(PAGE.palette, name): f"var(--{name})" for name in ("ink", "muted", "grid")},
    PAGE.palette.paper: "var(--card)",
    **{color: f"var(--series-{place})" for place, color in enumerate(PAGE.palette.series, 1)},
}
_INK = ("axes.labelcolor", "axes.titlecolor", "legend.labelcolor", "text.color")
_MUTED = ("axes.edgecolor", "xtick.color", "ytick.color", "xtick.labelcolor", "ytick.labelcolor")
_STYLE: Mapping[str, Any] = {
    **dict.fromkeys(_INK, PAGE.palette.ink),
    **dict.fromkeys(_MUTED, PAGE.palette.muted),
    "grid.color": PAGE.palette.grid,
    "svg.fonttype": "none",
    "font.size": 12,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "grid.linewidth": 0.8,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "text.parse_math": False,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
}
_POINTS_PER_INCH = 72
_PNG_SCALE = 2
"""Pixels of a PNG for one of the drawing, so that it is sharp on a fine screen."""
_METADATA: Mapping[str, Mapping[str, None]] = {
    ".svg": dict.fromkeys(("Date", "Creator", "Type", "Format")),
    ".png": {"Software": None},
}
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


def figure(canvas: Canvas, height_px: int) -> Any:
    """An empty figure of the canvas's width, laid out so that nothing is cut off."""
    from matplotlib.figure import Figure

    inches = (canvas.width_px / _POINTS_PER_INCH, height_px / _POINTS_PER_INCH)
    return Figure(figsize=inches, dpi=_POINTS_PER_INCH, layout="constrained", facecolor=canvas.palette.paper)


def render(draw: Callable[[], Any], suffix: str) -> bytes:
    """A figure drawn in our style, as a file's content.

    Args:
        draw: makes the figure, on PICTURE.
        suffix: .svg or .png.

    Raises:
        ValueError: another suffix, or whatever `draw` has to say.
        ImportError: matplotlib is not installed.
    """
    if suffix not in _METADATA:
        raise ValueError(f"a picture's name must end in {' or '.join(_METADATA)}, not {suffix!r}")
    with style():
        return _saved(draw(), suffix)


def save_picture(draw: Callable[[], Any], path: Path) -> Path:
    """Write what `render` makes; raises as it does, before anything is written."""
    content = render(draw, path.suffix)
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
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    head = f'<svg {view[0]} role="img" aria-label="{escape(description)}">'
    svg = head + svg[svg.index(">") + 1 :]
    svg = re.sub(r'<g id="tooltip-([^"]*)">', r"<g><title>\1</title>", svg)
    # Ids of groups repeat from drawing to drawing and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # One version writes the families by themselves, another in the shorthand.
    svg = re.sub(r"(font-family: |font: [\d.]+px )[^;\"]*", r"\1var(--sans)", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg.strip()


def require(package: str) -> Any:
    """Import a package of the extra `train`.

    Raises:
        ImportError: it is not installed; says how to.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"reports and plots need the package {package}: pip install 'milkweed[train]' ({error})"
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
