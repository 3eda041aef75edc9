"""The roofline of a machine and where its kernels are under it: operations a second against operations a byte.

The roof is what was measured in the same run: a large copy and a large matrix product. Operations and bytes of a point
are what its algorithm cannot avoid (`bench/cuda/shapes.py`), its height the time that was measured. What fits in a
cache may lie above the slope, which is that of the memory behind the caches.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..models.report.drawing import PICTURE, figure, label_ends, plain_log, save_picture
from ..models.report.spelling import counted

Point = tuple[float, float, str]
"""Operations a byte, operations a second, what and batch."""

_MARGIN, _MOST_NAMES = 1.6, 12


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Draw what `bench kernels` or `bench.gpu` measured.

    Raises:
        ValueError: nothing in it was timed and counted, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw(document), out)


def points(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The fastest dense way and the fastest Monarch way of each shape and batch; attention has one.

    Raises:
        ValueError: none was timed and counted.
    """
    best: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for row in rows:
        if not row["us"] or not row.get("moved_bytes"):
            continue
        key = (_family(row), row["what"], row["batch"])
        if key not in best or row["us"] < best[key]["us"]:
            best[key] = row
    found: dict[str, list[Point]] = {}
    for (family, what, batch), row in best.items():
        rate = 1e6 * row["flops"] / row["us"]
        found.setdefault(family, []).append((row["flops"] / row["moved_bytes"], rate, f"{_short(what)} ×{batch}"))
    if not found:
        raise ValueError("no kernel was timed whose work is counted: there is nothing to draw")
    return found


def draw(document: Mapping[str, Any]) -> Any:
    """The figure; raises ValueError as `points`."""
    families = points(document["rows"])
    ceilings = document["ceilings"]
    slope, flat = ceilings["bytes_per_second"], ceilings["flops_per_second"]
    palette = PICTURE.palette
    drawn = figure(PICTURE, 480)
    axis = drawn.subplots()
    everywhere = [point for family in families.values() for point in family]
    ridge = flat / slope
    low = min(ridge, *(x for x, _, _ in everywhere)) / _MARGIN
    high = max(ridge, *(x for x, _, _ in everywhere)) * _MARGIN**2
    axis.plot([low, ridge, high], [low * slope / 1e9, flat / 1e9, flat / 1e9], color=palette.ink, lw=1.6)
    axis.annotate(
        f"copy: {slope / 1e9:,.3g} GB/s", (low, low * slope / 1e9), (8, -4), textcoords="offset points", va="top"
    )
    axis.annotate(
        f"product: {flat / 1e9:,.4g} GFLOP/s", (high, flat / 1e9), (0, 5), textcoords="offset points", ha="right"
    )
    colours = dict(zip(families, palette.series, strict=False))
    for (family, members), mark in zip(families.items(), "os^D", strict=False):
        x, y = [point[0] for point in members], [point[1] / 1e9 for point in members]
        axis.plot(x, y, mark, ms=7, color=colours[family], label=family)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(low, high)
    slowest = min(y for _, y, _ in everywhere)
    axis.set_ylim(slowest / 1e9 / _MARGIN, max(flat, *(y for _, y, _ in everywhere)) / 1e9 * _MARGIN**2)
    plain_log(axis.xaxis)
    plain_log(axis.yaxis)
    label_ends(axis, [(x, y / 1e9, text, colours[family]) for family, (x, y, text) in _named(families)])
    axis.set_xlabel("FLOP a byte, of the least bytes that the algorithm moves")
    axis.set_ylabel("GFLOP/s, measured")
    axis.set_title(_title(document))
    axis.legend(loc="upper left", ncols=len(families))
    return drawn


def _family(row: Mapping[str, Any]) -> str:
    if row["section"] != "mlp":
        return str(row["section"])
    return "dense MLP" if row["candidate"].startswith("dense") else "Monarch MLP"


def _named(families: Mapping[str, Sequence[Point]]) -> list[tuple[str, Point]]:
    """All, or of many the leftmost and the rightmost of each family."""
    if sum(map(len, families.values())) <= _MOST_NAMES:
        return [(family, point) for family, members in families.items() for point in members]
    outermost = {family: dict.fromkeys((min(members), max(members))) for family, members in families.items()}
    return [(family, point) for family, members in outermost.items() for point in members]


def _short(what: str) -> str:
    """`ViT-B 768-3072` -> `ViT-B`."""
    return what.split()[0].rstrip(",")


def _title(document: Mapping[str, Any]) -> str:
    device = document["device"].get("device") or document["machine"]["processor"]
    settings = document["settings"]
    threads = f", {counted(settings['threads'], 'thread')}" if "threads" in settings else ""
    return f"{device}, {settings['dtype']}{threads}, nblocks {settings['nblocks']}"
