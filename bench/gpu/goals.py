"""Reads rows for a person: tables of candidates, and the goals, met or missed or not measured.

A goal is only measured if the peers that it names were timed beside our row in both rounds, with the clock that the
multiprocessors ran at; a weaker peer, one round or an unknown clock proves nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from .journal import Record
from .plan import (
    ALL,
    DENSE_COMPILED,
    DENSE_EAGER,
    FORWARDS,
    GOAL_BATCHES,
    GOAL_SHAPES,
    MLP_SHAPES,
    MLPS,
    PLAIN,
    PLAIN_COMPILED,
    ROUNDS,
    TWIN_COMPILED,
    TWIN_EAGER,
    VIT_B,
)

TRAINED = ("fused, bfloat16", "fused, float16")
ONCE = (1,)


@dataclass(frozen=True)
class Goal:
    """A figure that is to be reached: of a candidate's rows, or where there are peers, a speedup over them.

    Args:
        target: the figure's bound, or the speedup.
        ours: the candidate, whose worst row counts; of a speedup the fastest, and an empty name is any of ours.
        figure: its name in the rows' `figures`.
        at_most: the target is the largest figure allowed, not the smallest.
        rounds: it must be there in each; the worst counts, since that is what all of them showed.
        what, batch: of the rows of a speedup.
        peers: candidates that must have been timed; the fastest counts. Where a compiled dense model is one of them,
            any dense candidate may be the fastest: on an H100 torch.compile's was the slowest of three.
        otherwise: what a miss decides, where it decides something.
        why_not: why it can only be measured, where two launches a layer cannot reach it.
    """

    name: str
    target: float
    section: str
    ours: str
    figure: str = ""
    at_most: bool = False
    rounds: tuple[int, ...] = ROUNDS
    what: str = ""
    batch: int = 0
    peers: tuple[str, ...] = ()
    otherwise: str = ""
    why_not: str = ""


def goals() -> list[Goal]:
    """Return every goal, those measured first coming first."""
    http = "ViT-B over HTTP"
    weights = "ViT-B, all linears Monarch: bytes of weights of the dense model's"
    return [
        *_rules(),
        *_speedups(),
        Goal(f"{http}: ms, the median of one JPEG alone", 3.0, "served", "one JPEG", "p50_ms", True),
        Goal(f"{http}: share of its slowest part", 0.8, "served", "end to end", "of_the_limit"),
        Goal(weights, 0.45, "served", "weights", "of_dense", True, ONCE),
        Goal(f"{http}: MB that 100,000 images leave behind", 64.0, "served", "growth", "growth_mb", True, ONCE),
        *(
            Goal(f"logits of trained models, {way}", 1e-2, "numerics", way, "logits_error", True, ONCE)
            for way in TRAINED
        ),
        *(Goal(f"percent of equal top-1, {way}", 99.5, "numerics", way, "agreement", False, ONCE) for way in TRAINED),
    ]


def _rules() -> Iterator[Goal]:
    """Yield what decides at once which kernels stay."""
    launches, bits = partial(Goal, section="mlp", what="ViT-B"), partial(Goal, section="quantized", ours="int8")
    for batch in GOAL_BATCHES:
        name = f"MLP ViT-B batch {batch}: inner half in Gluon over Triton's launches"
        today, gone = ("triton_mlp", "triton"), "gluon_mlp is deleted"
        yield launches(name, round(1 / 0.85, 3), ours="gluon_mlp", batch=batch, peers=today, otherwise=gone)
        for layer in ("ViT-B fc1", "ViT-B fc2"):
            name = f"{layer} batch {batch}: int8 over 16 bits"
            gone = "cuBLASLt's fp8 takes the place of triton_quantized"
            yield bits(name, 1.35, what=layer, batch=batch, peers=(PLAIN, PLAIN_COMPILED), otherwise=gone)


def _speedups() -> Iterator[Goal]:
    for name, shape in MLP_SHAPES.items():
        for batch in GOAL_BATCHES if shape.goal else ():
            over_dense = partial(Goal, section="mlp", what=name, batch=batch, peers=(DENSE_COMPILED, DENSE_EAGER))
            why_not = "blocks of 96 are padded" if name == "ViT-S" else ""
            yield over_dense(f"MLP {name} batch {batch}: over dense", shape.goal or 0, ours="", why_not=why_not)
            # 2 %: two timings of the same code differ by that.
            yield over_dense(f"MLP {name} batch {batch}: tuned is not slower than dense", 0.98, ours="tuned")
    for name in GOAL_SHAPES:
        for batch in GOAL_BATCHES:
            for peer, target in (("SDPA flash", 1.3), ("SDPA cuDNN", 1.0)):
                title = f"attention {name} batch {batch}: over {peer}"
                yield Goal(title, target, "attention", "", what=name, batch=batch, peers=(peer,))
    for arch, layers, targets in (
        ("vit_base_patch16_224", MLPS, {TWIN_COMPILED: 1.35}),
        ("vit_base_patch16_224", ALL, {TWIN_COMPILED: 1.8}),
        ("vitae_basic_tiny", MLPS, {TWIN_EAGER: 3.0, TWIN_COMPILED: 1.5}),
        ("vitae_basic_small", MLPS, {TWIN_EAGER: 3.0, TWIN_COMPILED: 1.5}),
    ):
        ours = f"fused {'+'.join(layers)}"
        for batch in FORWARDS[arch][1]:
            for peer, target in targets.items():
                title = f"{arch} {ours} batch {batch}: over {'dense' if peer == TWIN_COMPILED else peer}"
                why_not = "a Monarch layer is two launches" if layers == ALL else ""
                yield Goal(title, target, "forward", ours, what=arch, batch=batch, peers=(peer,), why_not=why_not)
    for ours, target in {"tokens": 1.4, "8 bits": 1.4, "tokens, 8 bits": 1.9}.items():
        for batch in FORWARDS[VIT_B[0]][1]:
            title = f"{VIT_B[0]} {ours} batch {batch}: over dense"
            yield Goal(title, target, "levers", ours, what=VIT_B[0], batch=batch, peers=(TWIN_COMPILED,))


def judge(rows: Sequence[Record]) -> list[Record]:
    """Return each goal with `measured` (None, with a reason in `why`) and `met`."""
    return [_judged(goal, [row for row in rows if row["section"] == goal.section]) for goal in goals()]


def _judged(goal: Goal, rows: Sequence[Record]) -> Record:
    said: Record = {"goal": goal.name, "wanted": goal.target, "measured": None, "met": None}
    if goal.figure:
        said["at_most"] = goal.at_most
    values, timed = list[float](), list[Record]()
    for turn in goal.rounds:
        value = (_figure if goal.figure else _speedup)(goal, [row for row in rows if row.get("round") == turn], timed)
        if isinstance(value, str):
            return {**said, "why": f"round {turn}: {value}"}
        values.append(value)
    worst = max(values) if goal.at_most else min(values)
    met = worst <= goal.target if goal.at_most else worst >= goal.target
    said |= {"measured": worst, "met": None if goal.why_not else met, "rounds": values}
    said |= {name: text for name, text in (("why_not", goal.why_not), ("otherwise", goal.otherwise)) if text}
    if timed:
        clocks = [row["sm_mhz"] for row in timed]
        spread = max(values) / min(values) - 1
        said |= {"by": timed[-2]["candidate"], "spread": spread, "sm_mhz": [min(clocks), max(clocks)]}
    return said


def _figure(goal: Goal, rows: Sequence[Record], _: list[Record]) -> float | str:
    """Return the worst figure of a round; why it is not known."""
    ours = [row for row in rows if row["candidate"] == goal.ours]
    figures = [row["figures"].get(goal.figure) for row in ours]
    if not figures or None in figures:
        return "; ".join(row["note"] for row in ours if row["note"]) or f"no row of {goal.ours}"
    if words := [figure for figure in figures if isinstance(figure, str)]:
        return f"{goal.figure} is {words[0]}"
    return float(max(figures) if goal.at_most else min(figures))


def _speedup(goal: Goal, rows: Sequence[Record], timed: list[Record]) -> float | str:
    """Return how many times faster ours is in a round, and add both rows to `timed`; why that is not known."""
    here = {row["candidate"]: row for row in rows if (row["what"], row["batch"]) == (goal.what, goal.batch)}
    for name in goal.peers:
        if not here.get(name, {}).get("us"):
            return f"{name}: {here[name]['note']}" if name in here else f"no row of {name}"
    ours = fastest(row for name, row in here.items() if row["ours"] and _is_of(name, goal.ours))
    if ours is None:
        return "none of ours was timed"

    def is_peer(name: str) -> bool:  # over dense means over the best of the dense rows
        over_dense = not {DENSE_COMPILED, TWIN_COMPILED}.isdisjoint(goal.peers)
        return name in goal.peers or (over_dense and name.startswith("dense"))

    peer = fastest(row for name, row in here.items() if is_peer(name))
    assert peer is not None
    if not ours.get("sm_mhz") or not peer.get("sm_mhz"):
        return "the SM clock is unknown"
    timed += [ours, peer]
    return float(f"{peer['us'] / ours['us']:.4g}")


def _is_of(name: str, ours: str) -> bool:
    """Whether a candidate is the one that is asked for: any, that one, or one of several tiles."""
    return ours in ("", name) or name.startswith((f"{ours}:", f"{ours}, triton"))


def fastest(rows: Iterable[Record]) -> Record | None:
    """Return the fastest row; None if none ran."""
    return min((row for row in rows if row.get("us")), key=lambda row: float(row["us"]), default=None)


def goal_lines(judged: Iterable[Record]) -> Iterator[str]:
    """Return one line for each goal."""
    for goal in judged:
        unit = "" if "at_most" in goal else "x"
        target = f"{'at most ' if goal.get('at_most') else 'at least ' if not unit else ''}{goal['wanted']}{unit}"
        if goal["measured"] is None:
            yield f"  not measured  {goal['goal']} (wanted {target}): {goal['why']}"
            continue
        verdict = {True: "met   ", False: "missed", None: "beside"}[goal["met"]]
        more = f"rounds {'/'.join(map(str, goal['rounds']))}"
        if unit:
            clock = "-".join(f"{mhz:.0f}" for mhz in goal["sm_mhz"])
            more = f"by {goal['by']}, {more}, spread {100 * goal['spread']:.1f} %, SM {clock} MHz"
        more += f"; no verdict, since {goal['why_not']}" if "why_not" in goal else ""
        more += f"; so {goal['otherwise']}" if "otherwise" in goal and not goal["met"] else ""
        yield f"  {verdict} {goal['measured']:>6.4g}{unit}  {goal['goal']}, wanted {target}, {more}"


def table(rows: Sequence[Record]) -> Iterator[str]:
    """Lines: one for each row of figures; then a block for each shape and batch, fastest first, with the speed over the
    best peer."""
    for row in rows:
        if "figures" in row:
            figures = ", ".join(f"{name} {value}" for name, value in row["figures"].items())
            note = f" ({row['note']})" if row["note"] else ""
            yield f"{row['section']} {row['what']}, round {row['round']}: {row['candidate']}: {figures}{note}"
    timed = [row for row in rows if "candidate" in row and "us" in row]
    for (section, what, batch), group in groupby(timed, key=lambda row: (row["section"], row["what"], row["batch"])):
        members = sorted(group, key=lambda row: row["us"] or float("inf"))
        peer = fastest(row for row in members if not row["ours"])
        clock = next((f", SM {row['sm_mhz']:.0f} MHz" for row in members if row.get("sm_mhz")), "")
        yield f"{section} {what}, batch {batch}, round {members[0]['round']}{clock}"
        yield f"  {'candidate':34} {'us':>9} {'+-':>7} {'floor':>7} {'over peer':>9} {'error':>8}"
        for row in members:
            yield _line(row, peer)


def _line(row: Record, peer: Record | None) -> str:
    if not row["us"]:
        return f"  {row['candidate']:34} {'-':>9}  {row['note']}"
    over = f"{peer['us'] / row['us']:8.2f}x" if peer is not None else " " * 9
    error = f"{row['error']:.1e}" if isinstance(row["error"], float) else "-"
    share = f"{100 * row['floor_us'] / row['us']:6.0f}%" if row["floor_us"] else f"{'-':>7}"
    mark = "*" if row["ours"] else " "
    return f"{mark} {row['candidate']:34} {row['us']:9.1f} {row['iqr_us']:7.1f} {share} {over} {error:>8}"
