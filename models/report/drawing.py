"""The one place that knows matplotlib, and the style of all plots: SVG in a report's page, and pictures.

The same figure gives the same bytes: no date, no random ids. On a page colours are drawn as marks that become CSS
variables, so that one drawing serves light and dark; in a picture they are plain colours on white.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Palette:
    """The colours of a drawing; `series` are told apart by colour-blind eyes too."""

    ink: str
    muted: str
    grid: str
    paper: str
    accent: str
    chosen: str
    series: tuple[str, ...]


PAGE = Palette(
    "#010101", "#010102", "#010103", "#010104", "#010105", "#010106",
    ("#010111", "#010112", "#010113", "#010114", "#010115", "#010116"),
)  # fmt: skip
"""Marks, which the page's variables take the place of."""

PRINT = Palette(
    "#1a1a1a", "#5c5c5c", "#dddddd", "#ffffff", "#0072B2", "#D55E00",
    ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
)  # fmt: skip
"""On white, by Okabe and Ito."""

_VARIABLES = {
    PAGE.ink: "var(--ink)",
    PAGE.muted: "var(--muted)",
    PAGE.grid: "var(--grid)",
    PAGE.paper: "var(--card)",
    PAGE.accent: "var(--accent)",
    PAGE.chosen: "var(--chosen)",
    **{color: f"var(--series-{place})" for place, color in enumerate(PAGE.series, 1)},
}
_STYLE: Mapping[str, Any] = {
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
    "legend.frameon": False,
    "text.parse_math": False,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
}
_POINTS_PER_INCH = 72
_NOTHING_ABOUT: Mapping[str, Mapping[str, None]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
_PNG_SCALE = 2
"""Pixels of a PNG for one of the drawing: sharp where a screen has more of them."""


@dataclass(frozen=True)
class Canvas:
    """How wide a figure is, in pixels, and in which colours."""

    width_px: int
    palette: Palette

    @property
    def wide(self) -> bool:
        """Two panels have room beside each other."""
        return self.width_px > 800


WIDE, NARROW = Canvas(1000, PAGE), Canvas(380, PAGE)
"""A page on a screen or paper, and on a phone."""

PICTURE = Canvas(640, PRINT)


@contextmanager
def style(salt: str, palette: Palette = PAGE) -> Iterator[None]:
    """Figures inside are drawn in our style, whatever the user's matplotlibrc says.

    Args:
        salt: names the drawing, so that ids of two drawings on one page differ.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, **_colours(palette), "svg.hashsalt": salt})
        yield


def figure(canvas: Canvas, height_px: int) -> Any:
    """An empty figure of the canvas's width, laid out so that nothing is cut off."""
    from matplotlib.figure import Figure

    size = (canvas.width_px / _POINTS_PER_INCH, height_px / _POINTS_PER_INCH)
    paper = "none" if canvas.palette is PAGE else canvas.palette.paper
    return Figure(figsize=size, dpi=_POINTS_PER_INCH, layout="constrained", facecolor=paper)


def render(draw: Callable[[], Any], suffix: str) -> bytes:
    """A figure drawn in the style of pictures, as a file's content.

    Args:
        draw: makes the figure, on PICTURE.
        suffix: .svg or .png.

    Raises:
        ValueError: another suffix, or whatever `draw` has to say.
        ImportError: matplotlib is not installed.
    """
    if suffix not in _NOTHING_ABOUT:
        raise ValueError(f"a picture's name must end in {' or '.join(_NOTHING_ABOUT)}, not {suffix!r}")
    with style("milkweed", PRINT):
        out = io.BytesIO()
        # Which program made it, and when, would make the same figure another file.
        _settled(draw()).savefig(
            out, format=suffix[1:], dpi=_PNG_SCALE * _POINTS_PER_INCH, metadata=_NOTHING_ABOUT[suffix]
        )
    return out.getvalue()


def _settled(drawn: Any) -> Any:
    """Laid out for good, to a ten-thousandth: the last bits of the layout differ from run to run."""
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    for axis in drawn.axes:
        axis.set_position([round(value, 4) for value in axis.get_position().bounds])
    return drawn


def save_picture(draw: Callable[[], Any], path: Path) -> Path:
    """Write what `render` makes; raises as it does, before anything is written."""
    content = render(draw, path.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


Label = tuple[float, float, str, str]
"""Place in the axis's figures, text, colour."""

_LABEL_PT, _BESIDE_PT = 11, 7
_LETTER, _LINE = 0.6, 1.2
"""Width of a letter, roughly, and distance of two lines, in heights of the letters."""


def label_ends(axis: Any, labels: Sequence[Label]) -> None:
    """Names to the right of their points, in their colours, moved up where they would lie on each other or on a point.

    The axis has its scales, limits and data by now.
    """
    drawn = axis.figure.canvas.figure  # the whole one
    drawn.draw_without_rendering()  # lays out: places in pixels are known from here on
    scale = drawn.dpi / _POINTS_PER_INCH
    places = [axis.transData.transform(label[:2]) for label in labels]
    # Left, right and height of what has its place already.
    taken = [(x - _BESIDE_PT * scale, x + _BESIDE_PT * scale, y) for x, y in places]
    for (left, height), (x, y, text, color) in sorted(zip(places, labels, strict=True), key=lambda each: each[0][1]):
        begin, free = left + _BESIDE_PT * scale, height
        end = begin + _LETTER * _LABEL_PT * len(text) * scale
        line = _LINE * _LABEL_PT * scale
        near = 0.99 * line  # a whole line away is free, whatever the last bit says
        while hit := [place for low, high, place in taken if low < end and begin < high and abs(place - free) < near]:
            free = max(hit) + line
        taken.append((begin, end, free))
        axis.annotate(
            text,
            (x, y),
            (_BESIDE_PT, (free - height) / scale),
            textcoords="offset points",
            color=color,
            va="center",
            fontsize=_LABEL_PT,
        )


def plain_log(axis: Any) -> None:
    """Ticks of a logarithmic axis (`axes.xaxis`) at 1, 2 and 5 times a power of ten, as a person writes them."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def tell(artist: Any, text: str) -> None:
    """Give an artist a text that shows when a pointer rests on it."""
    artist.set_gid(f"tell-{text}")


def to_svg(drawn: Any, description: str) -> str:
    """The figure as an <svg> element; `description` is for those who cannot see it."""
    out = io.StringIO()
    drawn.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    head = f'<svg {view[0]} role="img" aria-label="{escape(description)}">'
    svg = head + svg[svg.index(">") + 1 :]
    svg = re.sub(r'<g id="tell-([^"]*)">', r"<g><title>\1</title>", svg)
    # Ids of groups repeat from drawing to drawing and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # One version writes the families by themselves, another in the shorthand.
    svg = re.sub(r"(font-family: |font: [\d.]+px )[^;\"]*", r"\1var(--sans)", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg.strip()


def check_matplotlib() -> None:
    """Find out early whether drawings can be made.

    Raises:
        ImportError: names what to install.
    """
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            f"reports and plots need the package matplotlib: pip install 'milkweed[train]' ({error})"
        ) from error
    return matplotlib


def _colours(palette: Palette) -> dict[str, str]:
    ink = ("axes.labelcolor", "axes.titlecolor", "legend.labelcolor", "text.color")
    muted = ("axes.edgecolor", "xtick.color", "ytick.color", "xtick.labelcolor", "ytick.labelcolor")
    return {**dict.fromkeys(ink, palette.ink), **dict.fromkeys(muted, palette.muted), "grid.color": palette.grid}
