"""The one place that knows matplotlib: figures to inline SVG whose colours and letters are the page's own.

The same figure gives the same bytes: no date, no random ids. Colours are drawn as marks that become CSS
variables, so that one drawing serves light and dark.
"""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

INK, MUTED, GRID, PAPER, ACCENT, CHOSEN = "#010101", "#010102", "#010103", "#010104", "#010105", "#010106"
SERIES = ("#010111", "#010112", "#010113", "#010114", "#010115", "#010116")
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--card)",
    ACCENT: "var(--accent)",
    CHOSEN: "var(--chosen)",
    **{color: f"var(--series-{place})" for place, color in enumerate(SERIES, 1)},
}
_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "font.size": 12,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
}
_POINTS_PER_INCH = 72


@dataclass(frozen=True)
class Canvas:
    """How wide a figure is, in pixels of the page: `wide` for a screen or paper, else for a phone."""

    wide: bool

    @property
    def width_px(self) -> int:
        return 1000 if self.wide else 380


@contextmanager
def style(salt: str) -> Iterator[None]:
    """Figures inside are drawn in the page's style, whatever the user's matplotlibrc says.

    Args:
        salt: names the drawing, so that ids of two drawings on one page differ.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        yield


def figure(canvas: Canvas, height_px: int) -> Any:
    """An empty figure of the canvas's width, laid out so that nothing is cut off."""
    from matplotlib.figure import Figure

    size = (canvas.width_px / _POINTS_PER_INCH, height_px / _POINTS_PER_INCH)
    return Figure(figsize=size, dpi=_POINTS_PER_INCH, layout="constrained", facecolor="none")


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
        raise ImportError(f"reports need the package matplotlib: pip install 'milkweed[train]' ({error})") from error
    return matplotlib
