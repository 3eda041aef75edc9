"""Reads rows for a person: tables of candidates, and the goals, met or missed or not measured.

A goal is only measured if the peers that it names were timed beside our row in both rounds, with the clock that the
multiprocessors ran at; a weaker peer, one round or an unknown clock proves nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .rows.shapes import ALL, FORWARDS, GOAL_BATCHES, GOAL_SHAPES, MLP_SHAPES, MLPS, ROUNDS

Row = dict[str, Any]

DENSE_COMPILED, DENSE_EAGER = "dense, torch.compile", "dense eager"
TWIN_COMPILED, TWIN_EAGER = "dense twin, torch.compile", "dense twin, eager launches"
"""Candidates that goals name: PyTorch's strongest (max-autotune), and the way most people run a model."""


@dataclass(frozen=True)
class Goal:
    """A speed over peers.

    Args:
        wanted: how many times faster than the fastest peer the fastest of `ours` is to be.
        section, what, batch: of the rows.
        peers: candidates that must have been timed.
        ours: how our candidates' names begin.
    """

    name: str
    wanted: float
    section: str
    what: str
    batch: int
    peers: tuple[str, ...]
    ours: str = ""


@dataclass(frozen=True)
class Bound:
    """A figure that is to be `wanted` at most, or at least.

    Args:
        section, candidate: of the rows; the worst of them counts.
        figure: its name in their `figures`.
        rounds: it must be there in each.
    """

    name: str
    wanted: float
    section: str
    candidate: str
    figure: str
    at_most: bool = True
    rounds: tuple[int, ...] = (1,)


TRAINED = ("fused, bfloat16", "fused, float16")

BOUNDS = (
    Bound("ViT-B over HTTP: ms, the median of one JPEG alone", 3.0, "served", "one JPEG", "p50_ms", rounds=ROUNDS),
    Bound("ViT-B over HTTP: share of its slowest part", 0.8, "served", "end to end", "of_the_limit", False, ROUNDS),
    Bound("ViT-B, all linears Monarch: bytes of weights of the dense model's", 0.45, "served", "weights", "of_dense"),
    Bound("ViT-B over HTTP: MB that 100,000 images leave behind", 64.0, "served", "growth", "growth_mb"),
    *(Bound(f"logits of trained models, {each}", 1e-2, "numerics", each, "logits_error") for each in TRAINED),
    *(Bound(f"percent of equal top-1, {each}", 99.5, "numerics", each, "agreement", False) for each in TRAINED),
)
"""What is asked of the service and of trained models."""


def speed_goals() -> list[Goal]:
    """Every goal that is a speed over peers, those measured first coming first."""
    found = []
    for shape in MLP_SHAPES:
        for batch in GOAL_BATCHES if shape.goal else ():
            name, strongest = f"MLP {shape.name} batch {batch}", (DENSE_COMPILED, DENSE_EAGER)
            found.append(Goal(f"{name}: over dense", shape.goal or 0, "mlp", shape.name, batch, strongest))
            # 2 %: two timings of the same code differ by that.
            no_loss = f"{name}: tuned is not slower than dense"
            found.append(Goal(no_loss, 0.98, "mlp", shape.name, batch, strongest, "tuned"))
    for what in GOAL_SHAPES:
        for batch in GOAL_BATCHES:
            for peer, wanted in (("SDPA flash", 1.3), ("SDPA cuDNN", 1.0)):
                name = f"attention {what} batch {batch}: over {peer}"
                found.append(Goal(name, wanted, "attention", what, batch, (peer,)))
    return [*found, *_forward_goals()]


def _forward_goals() -> Iterator[Goal]:
    wanted = {
        ("vit_base_patch16_224", MLPS): {TWIN_COMPILED: 1.35},
        ("vit_base_patch16_224", ALL): {TWIN_COMPILED: 1.8},
        ("vitae_basic_tiny", MLPS): {TWIN_EAGER: 3.0, TWIN_COMPILED: 1.5},
        ("vitae_basic_small", MLPS): {TWIN_EAGER: 3.0, TWIN_COMPILED: 1.5},
    }
    for (arch, layers), peers in wanted.items():
        for batch in FORWARDS[arch].batches:
            for peer, times in peers.items():
                ours = f"fused {'+'.join(layers)}"
                yield Goal(f"{arch} {ours} batch {batch}: over {peer}", times, "forward", arch, batch, (peer,), ours)


def judge(rows: Sequence[Row]) -> list[Row]:
    """Return each goal with `measured` (None, with a reason in `why`) and `met`."""
    return [*(_judged(goal, rows) for goal in speed_goals()), *(_judged_bound(bound, rows) for bound in BOUNDS)]


def _judged_bound(bound: Bound, rows: Sequence[Row]) -> Row:
    said: Row = {"goal": bound.name, "wanted": bound.wanted, "at_most": bound.at_most, "measured": None, "met": None}
    here = [r for r in rows if (r["section"], r.get("candidate")) == (bound.section, bound.candidate)]
    worst, found = max if bound.at_most else min, list[float]()
    for turn in bound.rounds:
        figures = [row["figures"].get(bound.figure) for row in here if row["round"] == turn]
        if not figures or None in figures:
            note = "; ".join(row["note"] for row in here if row["round"] == turn and row["note"])
            return {**said, "why": f"round {turn}: {note or f'no row of {bound.candidate}'}"}
        if words := [figure for figure in figures if isinstance(figure, str)]:
            return {**said, "why": f"round {turn}: {bound.figure} is {words[0]}"}
        found.append(worst(figures))
    measured = worst(found)
    met = measured <= bound.wanted if bound.at_most else measured >= bound.wanted
    return {**said, "measured": measured, "met": met, "rounds": found}


def _judged(goal: Goal, rows: Sequence[Row]) -> Row:
    said: Row = {"goal": goal.name, "wanted": goal.wanted, "measured": None, "met": None}
    here = [r for r in rows if (r["section"], r.get("what"), r.get("batch")) == (goal.section, goal.what, goal.batch)]
    ratios, clocks, by = [], list[float](), ""
    for turn in ROUNDS:
        found = _ratio(goal, [row for row in here if row["round"] == turn])
        if isinstance(found, str):
            return {**said, "why": f"round {turn}: {found}"}
        ratio, own, peer = found
        by = own["candidate"]
        ratios.append(float(f"{ratio:.4g}"))
        clocks += [own["sm_mhz"], peer["sm_mhz"]]
    # The smaller of the two rounds is what was shown twice.
    facts = {"rounds": ratios, "spread": max(ratios) / min(ratios) - 1, "sm_mhz": [min(clocks), max(clocks)]}
    return {**said, "measured": min(ratios), "met": min(ratios) >= goal.wanted, "by": by, **facts}


def _ratio(goal: Goal, rows: Sequence[Row]) -> tuple[float, Row, Row] | str:
    """How many times faster ours is in one round, with both rows; why that is not known."""
    named = {row["candidate"]: row for row in rows}
    for name in goal.peers:
        if not named.get(name, {}).get("us"):
            return f"{name}: {named[name]['note']}" if name in named else f"no row of {name}"
    own = fastest(row for row in rows if row["ours"] and row["candidate"].startswith(goal.ours))
    if own is None:
        return "none of ours was timed"
    peers = [row for row in rows if row["candidate"] in goal.peers or _is_stronger(goal, row)]
    peer = fastest(peers)
    assert peer is not None
    if not own.get("sm_mhz") or not peer.get("sm_mhz"):
        return "the SM clock is unknown"
    return peer["us"] / own["us"], own, peer


def _is_stronger(goal: Goal, row: Row) -> bool:
    """Whether the row is another dense peer: over dense means over the best of them."""
    return DENSE_COMPILED in goal.peers and not row["ours"] and bool(str(row["candidate"]).startswith("dense"))


def fastest(rows: Iterable[Row]) -> Row | None:
    """Return the fastest row; None if none ran."""
    return min((row for row in rows if row.get("us")), key=lambda row: float(row["us"]), default=None)


def goal_lines(found: Iterable[Row]) -> Iterator[str]:
    """Return one line for each goal."""
    for one in found:
        unit = "" if "at_most" in one else "x"
        wanted = f"{'at most ' if one.get('at_most') else 'at least ' if not unit else ''}{one['wanted']}{unit}"
        if one["measured"] is None:
            yield f"  not measured  {one['goal']} (wanted {wanted}): {one['why']}"
            continue
        verdict, rounds = "met   " if one["met"] else "missed", "/".join(map(str, one["rounds"]))
        more = f"rounds {rounds}"
        if unit:
            clock = "-".join(f"{mhz:.0f}" for mhz in one["sm_mhz"])
            more = f"by {one['by']}, {more}, spread {100 * one['spread']:.1f} %, SM {clock} MHz"
        yield f"  {verdict} {one['measured']:>6.4g}{unit}  {one['goal']}, wanted {wanted}, {more}"


def doubt_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Return one line for each doubt about impls that tuning was to settle: how often it chose them."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        for what, chosen in row.get("doubts", {}).items():
            found.setdefault(what, []).append(chosen)
    for what, chosen in sorted(found.items()):
        yield f"  {f'chosen in {sum(chosen)} of' if any(chosen) else 'never chosen in'} {len(chosen)} chains: {what}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines: one for each row of figures; then a block for each shape and batch, fastest first, with the speed over the
    best peer."""
    for row in rows:
        if "figures" in row:
            figures = ", ".join(f"{name} {value}" for name, value in row["figures"].items())
            note = f" ({row['note']})" if row["note"] else ""
            yield f"{row['section']} {row['what']}, round {row['round']}: {row['candidate']}: {figures}{note}"
    timed = [row for row in rows if "candidate" in row and "us" in row]
    for (section, what, batch), group in groupby(timed, key=lambda row: (row["section"], row["what"], row["batch"])):
        members = list(group)
        peer = fastest(row for row in members if not row["ours"])
        clock = next((f", SM {row['sm_mhz']:.0f} MHz" for row in members if row.get("sm_mhz")), "")
        yield f"{section} {what}, batch {batch}, round {members[0]['round']}{clock}"
        yield f"  {'candidate':34} {'us':>9} {'+-':>7} {'floor':>7} {'over peer':>9} {'error':>8}"
        for row in sorted(members, key=lambda row: row["us"] or float("inf")):
            yield _line(row, peer)


def _line(row: Row, peer: Row | None) -> str:
    if not row["us"]:
        return f"  {row['candidate']:34} {'-':>9}  {row['note']}"
    over = f"{peer['us'] / row['us']:8.2f}x" if peer is not None else " " * 9
    error = f"{row['error']:.1e}" if isinstance(row["error"], float) else "-"
    share = f"{100 * row['floor_us'] / row['us']:6.0f}%" if row["floor_us"] else f"{'-':>7}"
    mark = "*" if row["ours"] else " "
    return f"{mark} {row['candidate']:34} {row['us']:9.1f} {row['iqr_us']:7.1f} {share} {over} {error:>8}"
