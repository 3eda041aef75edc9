"""Rows as a person reads them: tables, and the goals and whether they are met."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from .forward import GOALS as FORWARD_GOALS
from .forward import what as model_name
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
    for arch, layers, batches, peer, goal in FORWARD_GOALS:
        for batch in batches:
            here = [row for row in rows if row.section == "model" and row.batch == batch]
            here = [row for row in here if row.what == model_name(arch, layers)]
            if here:
                against = [row for row in here if row.candidate == peer]
                found.append(_goal(f"{model_name(arch, layers)} batch {batch}: over {peer}", goal, against, here))
    return found


def _goal(what: str, goal: float, peers: Sequence[Row], ours: Sequence[Row]) -> dict[str, object]:
    peer, own = best(peers, ours=False), best(ours, ours=True)
    if peer is None or own is None or not peer.us or not own.us:
        return {"goal": what, "wanted": goal, "measured": None, "met": None}
    return {**at_least(what, goal, peer.us / own.us, "x"), "by": own.candidate}


def at_least(what: str, wanted: float, measured: float, unit: str = "") -> dict[str, object]:
    """A goal that is met from `wanted` on."""
    found = {"goal": what, "wanted": wanted, "measured": float(f"{measured:.4g}"), "unit": unit}
    return {**found, "met": measured >= wanted}


def at_most(what: str, wanted: float, measured: float, unit: str = "") -> dict[str, object]:
    """A goal that is met up to `wanted`."""
    return {**at_least(what, wanted, measured, unit), "at_most": True, "met": measured <= wanted}


def goal_lines(found: Iterable[dict[str, object]]) -> Iterator[str]:
    """One line a goal."""
    for one in found:
        unit = one.get("unit", "x")
        wanted = f"{'at most ' if one.get('at_most') else ''}{one['wanted']}{unit}"
        if one["measured"] is None:
            yield f"  not measured  {one['goal']} (wanted {wanted})"
        else:
            verdict, by = "met   " if one["met"] else "missed", f", by {one['by']}" if "by" in one else ""
            yield f"  {verdict} {one['measured']:>7.4g}{unit}  {one['goal']} (wanted {wanted}{by})"
