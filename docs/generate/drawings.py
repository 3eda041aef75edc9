"""Draws the pictures of docs/: `python docs/generate/drawings.py` writes docs/pictures/*.svg; a test compares them."""

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "pictures"

# A picture brings its own ground, so it can be read wherever it stands, also on a page darker than the system.
_STYLE = """text{font:14px system-ui,sans-serif;fill:var(--ink)}.small{font-size:12px;fill:var(--soft)}
.head{font-weight:600;font-size:15px}.exit{font-size:12px;fill:var(--exit);font-weight:600}.code{font-family:monospace}
.mid{text-anchor:middle}svg{--ground:#fff;--ink:#1b1f24;--soft:#57606a;--line:#8c959f;--box:#f6f8fa;--band:#eef6f5;
--exit:#b42318;--a:#0f766e;--b:#b45309;--c:#6d28d9;--d:#1d4ed8}
@media(prefers-color-scheme:dark){svg{--ground:#16191d;--ink:#e6edf3;--soft:#9da7b3;--line:#6e7681;--box:#21262d;
--band:#132a29;--exit:#ff9a8d;--a:#2dd4bf;--b:#fbbf24;--c:#c4a7ff;--d:#7db4ff}}"""
COLOURS = ("a", "b", "c", "d")
"""One for each block."""


class Picture:
    """An SVG that grows by shapes; lengths in px."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="var(--line)"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--ground)"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str = "box", opacity: float = 1) -> None:
        line = ' stroke="var(--line)"' if fill == "box" else ""
        self._lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{5 if height > 20 else 0}" '
            f'fill="var(--{fill})" fill-opacity="{opacity:g}"{line}/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self._lines.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>')

    def notes(self, x: float, y: float, *lines: str) -> None:
        """Small lines below each other."""
        for place, line in enumerate(lines):
            self.text(x, y + 16 * place, line, "small")

    def titled(self, x: float, y: float, width: float, title: str, *lines: str, height: float = 64) -> None:
        """A box with a heading and small lines."""
        self.box(x, y, width, height)
        self.text(x + 10, y + 21, title, "head")
        self.notes(x + 10, y + 39, *lines)

    def line(self, *points: tuple[float, float], colour: str = "line", tip: bool = True, width: float = 1.5) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        end = ' marker-end="url(#tip)"' if tip else ""
        self._lines.append(f'<path d="{path}" fill="none" stroke="var(--{colour})" stroke-width="{width:g}"{end}/>')

    def svg(self) -> str:
        return "\n".join((*self._lines, "</svg>\n"))


def request() -> str:
    """One request, first to last, as the table of docs/architecture.md has it."""
    p = Picture(1000, 500, "The path of one request through the server")
    p.box(20, 60, 960, 120, "band")
    p.text(104, 80, "the event loop: HTTP", "small")
    p.box(20, 215, 960, 120, "band")
    p.text(34, 235, "the engine: one thread for each device", "small")
    p.box(20, 370, 960, 110, "band")
    p.text(168, 390, "the event loop again", "small")
    p.text(34, 32, "POST /classify", "head code")
    p.text(190, 32, "photographs, arrays: raw, multipart or JSON", "small")
    p.line((90, 40), (90, 92))
    top = (
        (34, 150, "middleware", "request id, clock", "", ""),
        (234, 170, "routes", "the body, in chunks", "up to the limit", "413 415"),
        (454, 190, "guard", "format and size from the", "header; decodes nothing", "400 413 415 422"),
        (694, 272, "batcher: in, or not", "can it be answered in time?", "all images of a request or none", "503"),
    )
    for (x, width, title, first, second, leaves), after in zip(top, (*top[1:], None), strict=True):
        p.titled(x, 94, width, title, first, second)
        if after:
            p.line((x + width, 126), (after[0] - 2, 126))
        p.text(x + 10, 173, leaves, "exit")
    p.line((830, 158), (830, 247))
    p.text(636, 203, "the queue: bounded; no timer", "small")
    low = (
        (774, 192, "batch", "when the device is free;", "who came late or left is out", "504"),
        (534, 200, "loaders", "bytes to pixels; a bad image", "is an error in its own slot", "422, that image alone"),
        (294, 200, "models, kernels", "the forward", "", "500, that batch alone"),
        (54, 200, "pipeline", "softmax, the best classes", "", ""),
    )
    for (x, width, title, first, second, leaves), after in zip(low, (*low[1:], None), strict=True):
        p.titled(x, 249, width, title, first, second)
        if after:
            p.line((x, 281), (after[0] + after[1] + 2, 281))
        p.text(x + 10, 328, leaves, "exit")
    p.line((154, 313), (154, 402))
    p.titled(54, 404, 200, "routes", "the answer, Server-Timing", height=52)
    p.line((254, 430), (300, 430))
    p.text(306, 434, "200", "head")
    stages = (
        ("receive", "line", 60), ("parse", "line", 46), ("queue", "b", 60), ("decode", "a", 76), ("ready", "line", 46),
        ("forward", "d", 96), ("postprocess", "c", 88), ("deliver", "line", 54), ("respond", "line", 64),
    )  # fmt: skip
    x = 360.0
    for name, colour, width in stages:
        p.box(x, 412, width - 2, 18, colour, 0.75)
        p.text(x + width / 2 - 1, 446, name, "small mid")
        x += width
    p.text(
        360,
        402,
        "Server-Timing: stages that meet without gaps and add up to the whole (widths are not to scale)",
        "small",
    )
    p.text(360, 470, "In red: the status with which a request, or one image, may leave.", "small")
    return p.svg()


def monarch() -> str:
    """A Monarch product of 16 features and 4 blocks: as matrices, and as wires. Indices as in kernels/reference.py."""
    n, blocks = 16, 4
    cell, width = 9, 4
    p = Picture(1000, 600, "A Monarch matrix is two block-diagonal factors with fixed permutations")
    p.text(30, 34, "As matrices: 16 features, 4 blocks", "head")
    side = n * cell
    places = {"dense": 40, "out": 290, "l": 460, "mid": 630, "r": 800}
    for name, x in places.items():
        p.box(x - 1, 59, side + 2, side + 2)
        for row in range(n):
            for column in range(n):
                colour, opacity = "", 0.9
                if name == "dense":  # row i belongs to output block i mod 4, column j to input block j div 4
                    colour, opacity = COLOURS[column // width], 0.3 + 0.2 * (row % blocks)
                elif name == "r" and row // width == column // width:
                    colour = COLOURS[row // width]
                elif name == "l" and row // width == column // width:
                    colour, opacity = "ink", 0.3 + 0.2 * (row // width)
                elif name in ("mid", "out") and column == (row % blocks) * width + row // blocks:
                    colour = "soft"
                if colour:
                    p.box(x + column * cell, 60 + row * cell, cell - 1, cell - 1, colour, opacity)
    p.text(236, 138, "=", "head")
    said = ("W: 256 entries", "permutation", "L: 64 weights", "permutation", "R: 64 weights")
    for x, text in zip(places.values(), said, strict=True):
        p.text(x + side / 2, 226, text, "mid")
    p.notes(
        30,
        250,
        "Each of the 16 sub-blocks of W (rows of one shade, columns of one colour) has rank 1 here: 128 weights in",
        "place of 256. With N blocks a square layer keeps 2/N of its weights, one of 1:4 as in an MLP 1.25/N.",
    )
    p.text(30, 306, "As wires: what happens to one vector", "head")
    top, gap = 330, 15.0

    def y_of(place: int) -> float:
        return top + gap * place + gap * (place // width) * 0.35

    columns = (90, 230, 370, 590, 730, 940)
    for block in range(blocks):
        first, colour = y_of(block * width), COLOURS[block]
        height = 3 * gap + 14
        p.box(columns[1], first - 7, 140, height, colour, 0.22)
        p.text(columns[1] + 70, first + 27, f"block {block} of R", "mid")
        p.box(columns[3], first - 7, 140, height, "ink", 0.1 + 0.07 * block)
        p.text(columns[3] + 70, first + 27, f"block {block} of L", "mid")
    for a in range(n):
        here = y_of(a)
        p.line((columns[0], here), (columns[1], here), colour=COLOURS[a // width], tip=False)
        # Intermediate a goes to output block a mod 4, as its column a div 4.
        goal = y_of((a % blocks) * width + a // blocks)
        p.line((columns[2], here), (columns[3], goal), colour=COLOURS[a // width], tip=False)
        # Row s of output block l is output s * 4 + l.
        goal = y_of((a % width) * blocks + a // width)
        p.line((columns[4], here), (columns[5], goal), colour="soft", tip=False, width=1)
    for x, text in ((60, "x"), (950, "y")):
        p.text(x, y_of(8), text, "head")
    p.text(columns[2] + 110, 596, "every block of L reads from each", "small mid")
    p.text(columns[1] + 70, 596, "4 small products", "small mid")
    p.text(columns[3] + 70, 596, "4 small products", "small mid")
    p.text(columns[4] + 105, 596, "outputs interleave", "small mid")
    return p.svg()


def mlp() -> str:
    """Launches of an MLP's two Monarch layers, by engine."""
    p = Picture(1000, 420, "Launches of an MLP: PyTorch's operations, Triton, one fused kernel")
    rows: tuple[tuple[str, str, tuple[tuple[str, str, int], ...]], ...] = (
        ("As written in PyTorch", "every box reads from the GPU's memory and writes to it", (
            ("norm", "line", 60), ("R1", "a", 60), ("permute", "line", 72), ("L1", "a", 60), ("permute", "line", 72),
            ("bias, gelu", "line", 84), ("R2", "d", 60), ("permute", "line", 72), ("L2", "d", 60),
            ("permute", "line", 72), ("bias, add", "line", 84))),
        ("Triton, any shape", "the MLP in four; the permutations are in the order of the packed weights", (
            ("norm", "line", 60), ("R1", "a", 200), ("L1, bias, gelu", "a", 200), ("R2", "d", 200),
            ("L2, bias, add", "d", 200))),
        ("monarch_mlp, up to 384 wide", "one launch; the hidden activations stay in registers", (
            ("norm,   R1,   L1,   bias,   gelu,   R2,   L2,   bias,   add", "c", 900),)),
    )  # fmt: skip
    y = 40
    for title, said, launches in rows:
        p.text(40, y, title, "head")
        p.text(310, y, said, "small")
        x = 40.0
        for name, colour, width in launches:
            p.box(x, y + 14, width, 40, colour, 0.28)
            p.text(x + width / 2, y + 39, name, "mid")
            p.box(x + width + 2, y + 20, 5, 28, "exit", 0.8)
            x += width + 12
        y += 106
    p.box(40, y, 5, 20, "exit", 0.8)
    p.text(54, y + 15, "activations through the GPU's memory", "small")
    p.notes(
        40,
        y + 46,
        "R and L: the two block-diagonal factors of fc1 (1) and fc2 (2). The tuner measures them all, dense ones too,",
        "and takes the shortest; widths of boxes are not times. No GPU has been measured.",
    )
    return p.svg()


def attention() -> str:
    """Short attention: what lies where."""
    p = Picture(1000, 330, "Short attention: keys and values in shared memory, scores in registers")
    p.box(20, 20, 300, 250, "band")
    p.text(36, 44, "GPU's memory: as qkv left it", "head")
    for place, (name, colour) in enumerate((("queries", "b"), ("keys", "a"), ("values", "d"))):
        p.box(50 + 85 * place, 64, 70, 150, colour, 0.25)
        p.text(85 + 85 * place, 145, name, "mid")
    p.text(36, 238, "(batch, tokens, 3, heads, head_dim)", "small code")
    p.text(36, 256, "no transposes before or after", "small")
    p.box(350, 20, 270, 250, "band")
    p.text(366, 44, "shared memory of one block", "head")
    p.box(380, 64, 95, 150, "a", 0.25)
    p.text(427, 145, "all keys", "mid")
    p.box(495, 64, 95, 150, "d", 0.25)
    p.text(542, 145, "all values", "mid")
    p.text(366, 238, "one image, one head, up to 256 tokens", "small")
    p.text(366, 256, "read once", "small")
    p.box(650, 20, 330, 250, "band")
    p.text(666, 44, "registers of one warp", "head")
    p.box(680, 64, 270, 34, "b", 0.25)
    p.text(815, 86, "16 queries", "mid")
    p.box(680, 112, 270, 34, "a", 0.25)
    p.text(815, 134, "their scores to all tokens", "mid")
    p.box(680, 160, 270, 34, "c", 0.25)
    p.text(815, 182, "exact softmax, one pass", "mid")
    p.box(680, 208, 270, 34, "d", 0.25)
    p.text(815, 230, "times the values: 16 results", "mid")
    for y in (98, 146, 194):
        p.line((815, y), (815, y + 13))
    p.line((320, 140), (348, 140))
    p.line((620, 140), (648, 140))
    p.notes(
        20,
        300,
        "Longer sequences need a running maximum and rescaling, since their scores do not fit. Those of image models",
        "do: 197 tokens of 64 numbers take 67.5 KiB of shared memory. No GPU has been measured.",
    )
    return p.svg()


DRAWINGS: dict[str, Callable[[], str]] = {
    "request": request,
    "monarch": monarch,
    "mlp": mlp,
    "attention": attention,
}


def main() -> None:
    """Write them all, into docs/pictures or the folder given."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
