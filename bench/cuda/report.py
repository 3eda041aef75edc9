"""Rows as a person reads them: tables, the goals and whether they are met, and the roofline plot."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from .ceilings import Ceilings
from .rows import Row, best
from .shapes import MLP_SHAPES

GOAL_BATCH = 32
"""Goals over dense hold from this batch on."""


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines: one block a shape and batch, fastest first, with the speed over the best peer."""
    for (section, what, batch), group in groupby(rows, key=lambda row: (row.section, row.what, row.batch)):
        members = list(group)
        peer = best(members, ours=False)
        yield ""
        yield f"{section} {what}, batch {batch}"
        yield f"  {'candidate':34} {'warm us':>9} {'+-':>7} {'cold us':>9} {'floor':>7} {'over peer':>9} {'error':>8}"
        for row in sorted(members, key=lambda row: row.us or float("inf")):
            if row.us is None:
                yield f"  {row.candidate:34} {'-':>9}  {row.note}"
                continue
            over = f"{peer.us / row.us:8.2f}x" if peer is not None and peer.us else " " * 9
            cold = f"{row.cold_us:9.1f}" if row.cold_us else f"{'-':>9}"
            error = "-" if row.error is None else f"{row.error:.1e}"
            share = f"{100 * row.floor_us / row.us:6.0f}%" if row.floor_us else f"{'-':>7}"
            mark = "*" if row.ours else " "
            yield f"{mark} {row.candidate:34} {row.us:9.1f} {row.iqr_us or 0:7.1f} {cold} {share} {over} {error:>8}"


def goals(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Each goal, what was measured, and whether it is met; `measured` is None where a row is missing."""
    found: list[dict[str, object]] = []
    for shape in MLP_SHAPES:
        for batch in sorted({row.batch for row in rows if row.section == "mlp"}):
            here = [r for r in rows if r.section == "mlp" and r.batch == batch and r.what.startswith(shape.name + " ")]
            if not here:
                continue
            what = f"MLP {shape.name} batch {batch}"
            dense = [row for row in here if row.candidate.startswith("dense")]
            if shape.goal is not None and batch >= GOAL_BATCH:
                found.append(_goal(f"{what}: over the best dense row", shape.goal, dense, here))
                bmm = [row for row in here if row.candidate.startswith("Monarch bmm eager")]
                found.append(_goal(f"{what}: over Monarch bmm", 3.0, bmm, here))
            tuned = [row for row in here if row.candidate == "tuned"]
            # 2 %: two timings of the same code differ by that.
            found.append(_goal(f"{what}: tuned is never slower than dense", 0.98, dense, tuned))
    for what, batch in sorted({(row.what, row.batch) for row in rows if row.section == "attention"}):
        here = [row for row in rows if row.section == "attention" and (row.what, row.batch) == (what, batch)]
        for peer, goal in (("SDPA flash", 1.3), ("SDPA cuDNN", 1.0)):
            against = [row for row in here if row.candidate == peer]
            found.append(_goal(f"attention {what} batch {batch}: over {peer}", goal, against, here))
    return found


def _goal(what: str, goal: float, peers: Sequence[Row], ours: Sequence[Row]) -> dict[str, object]:
    peer, own = best(peers, ours=False), best(ours, ours=True)
    if peer is None or own is None or not peer.us or not own.us:
        return {"goal": what, "wanted": goal, "measured": None, "met": None}
    ratio = peer.us / own.us
    return {"goal": what, "wanted": goal, "measured": round(ratio, 3), "met": ratio >= goal, "by": own.candidate}


def goal_lines(found: Iterable[dict[str, object]]) -> Iterator[str]:
    """One line a goal."""
    for one in found:
        if one["measured"] is None:
            yield f"  not measured  {one['goal']} (wanted {one['wanted']}x)"
        else:
            verdict = "met   " if one["met"] else "missed"
            yield f"  {verdict} {one['measured']:>6.2f}x  {one['goal']} (wanted {one['wanted']}x, by {one['by']})"


def plot_roofline(rows: Sequence[Row], ceilings: Ceilings, path: Path) -> str:
    """Measured time over the least possible, one bar a shape and batch, ours beside the best peer; says what it did."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no roofline plot: matplotlib is not there (pip install matplotlib)"
    keys = list(
        dict.fromkeys((row.section, row.what, row.batch) for row in rows if row.section in ("mlp", "attention"))
    )
    bars: list[tuple[str, float, float, float | None]] = []
    for key in keys:
        here = [row for row in rows if (row.section, row.what, row.batch) == key]
        mine, other = best(here, ours=True), best(here, ours=False)
        if mine is not None and mine.us and mine.floor_us:
            bars.append((f"{key[1]}, batch {key[2]}", mine.floor_us, mine.us, other.us if other else None))
    if not bars:
        return "no roofline plot: nothing of ours was timed"
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.34 * len(bars)))
    for i, (_, floor, own, peer) in enumerate(bars):
        axes.plot([floor, own], [i, i], color="#999999", linewidth=1, zorder=1)
        axes.scatter([floor], [i], marker="|", s=140, color="black", zorder=2, label="floor" if i == 0 else None)
        axes.scatter([own], [i], color="#e8891d", zorder=3, label="milkweed" if i == 0 else None)
        if peer:
            axes.scatter([peer], [i], color="#3a6ea5", marker="s", zorder=2, label="best peer" if i == 0 else None)
    axes.set_xscale("log")
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"microseconds; floor from {ceilings.flops_per_second / 1e12:.0f} TFLOP/s and "
        f"{ceilings.bytes_per_second / 1e12:.2f} TB/s, measured in the same run"
    )
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return f"roofline plot: {path}"
