"""What each CUDA kernel takes on each architecture: `python -m milkweed.bench.kernel_resources` after `make kernels`.

Registers and spills are read from the built library, threads and shared memory asked of the launch functions; no GPU.
Writes docs/kernels-resources.md and bench/results/kernel_resources.json.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..kernels.native.stamp import LIBRARY, LibraryStamp, file_sha256, read_stamp, source_hash
from ..kernels.native.toolchain import BuildError
from .device_code import NoTool, memory_instructions, resource_usage
from .launches import recorded_launches

DEFAULT_OUT = Path("bench/results/kernel_resources.json")
DEFAULT_DOC = Path("docs/kernels-resources.md")

STORES_OF = "90a"
"""The architecture whose stores are counted: disassembling takes a minute each."""

SHARED_LIMITS = {"99": "86, 89, 120", "163": "80", "227": "90, 100"}
"""KiB of shared memory that a block may have, by architecture (CUDA programming guide, technical specifications)."""

INTRODUCTION = """Made by `python -m milkweed.bench.kernel_resources` from the library that `make kernels` builds: nvcc
{nvcc}, sources {source}, {count} kernels for each of {archs} architectures and PTX, {megabytes:.1f} MB. Nothing here
was run on a GPU. {spills} {stores}

Registers are a thread's; `+24` behind them are bytes that a thread spills. Shared memory is a block's, in KiB; a tile
above the device's limit refuses, and the tuner takes another: {limits}. Where the number types differ, a cell is
bfloat16 / float16.
"""


def measure(library: Path = LIBRARY) -> dict[str, Any]:
    """The document: one row for each kernel of each problem, tile and number type.

    Raises:
        ValueError: the library is missing, or was built from other sources.
        BuildError: no C++ compiler to ask the launch functions with.
        NoTool: no cuobjdump.
    """
    stamp = _current_stamp(library)
    usage = resource_usage(library)
    accesses = memory_instructions(library, STORES_OF) if STORES_OF in usage else {}
    rows = [
        {
            **asdict(launch),
            "registers": {arch: kernels[launch.kernel].registers for arch, kernels in usage.items()},
            "spilled_bytes": {arch: kernels[launch.kernel].spilled_bytes for arch, kernels in usage.items()},
            "stores": {k: n for k, n in sorted(accesses.get(launch.kernel, {}).items()) if k.startswith("STG")},
        }
        for launch in recorded_launches()
    ]
    spilling = {arch: sorted(name for name, use in kernels.items() if use.spills) for arch, kernels in usage.items()}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "nvcc": stamp.nvcc,
        "source_hash": stamp.source_hash,
        "library_bytes": library.stat().st_size,
        "kernels": {arch: len(kernels) for arch, kernels in usage.items()},
        "spilling": spilling,
        "not_listed": sorted(set().union(*usage.values()) - {launch.kernel for launch in recorded_launches()}),
        "rows": rows,
    }


def _current_stamp(library: Path) -> LibraryStamp:
    if not library.exists():
        raise ValueError(f"{library} is missing: run `make kernels`")
    stamp = read_stamp(library)
    if stamp.source_hash != source_hash() or stamp.library_sha256 != file_sha256(library):
        raise ValueError(f"{library} was built from other sources: run `make kernels`")
    return stamp


def markdown(document: Mapping[str, Any]) -> str:
    """The document as a page: a table for each operator."""
    archs = list(document["kernels"])
    parts = ["# What the CUDA kernels take\n", _introduction(document)]
    for op in dict.fromkeys(row["op"] for row in document["rows"]):
        heading = ["", "tile", "threads", "shared KiB", *(f"sm_{arch}" for arch in archs)]
        parts += [f"## {op}\n", _line(heading), _line(["---"] * len(heading))]
        # The rows of a problem and tile: every kernel of the call, in bfloat16, then in float16.
        calls: dict[tuple[str, int, str], list[list[str]]] = {}
        for row in document["rows"]:
            if row["op"] == op:
                calls.setdefault((row["problem"], row["tile"], _short_name(row)), []).append(_cells(row, archs))
        parts += [_line([_pair(cells) for cells in zip(*call, strict=True)]) for call in calls.values()]
        parts.append("")
    return "\n".join(parts)


def _introduction(document: Mapping[str, Any]) -> str:
    by_arch = {arch: len(names) for arch, names in document["spilling"].items() if names}
    counts = ", ".join(f"{count} in sm_{arch}" for arch, count in by_arch.items())
    others = {kind for row in document["rows"] for kind in row["stores"]} - {"STG.128"}
    widths = ", ".join(sorted(kind.removeprefix("STG.") for kind in others))
    text = INTRODUCTION.format(
        nvcc=document["nvcc"],
        source=document["source_hash"][:12],
        count=max(document["kernels"].values()),
        archs=len(document["kernels"]),
        megabytes=document["library_bytes"] / 1e6,
        spills=f"Kernels that spill registers: {counts}." if by_arch else "None spills a register.",
        stores=f"In sm_{STORES_OF} every store to global memory is 16 bytes wide"
        + (f", but for some of {widths} bits." if others else "."),
        limits="; ".join(f"{limit} KiB on sm_{archs}" for limit, archs in SHARED_LIMITS.items()),
    )
    return "\n\n".join(textwrap.fill(part, 120) for part in text.split("\n\n")) + "\n"


def _short_name(row: Mapping[str, Any]) -> str:
    """Which of a call's kernels it is; empty where there is one."""
    return row["kernel"].partition("<")[0].rpartition("_")[2] if row["op"] == "performer_attention" else ""


def _cells(row: Mapping[str, Any], archs: Sequence[str]) -> list[str]:
    name = ", ".join(part for part in (row["problem"], _short_name(row)) if part)
    registers = [_registers(row["registers"][arch], row["spilled_bytes"][arch]) for arch in archs]
    return [name, str(row["tile"]), str(row["threads"]), f"{row['shared_bytes'] / 1024:.1f}", *registers]


def _registers(registers: int, spilled_bytes: int) -> str:
    return f"{registers} +{spilled_bytes}" if spilled_bytes else str(registers)


def _pair(cells: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(cells))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _json(document: Mapping[str, Any]) -> str:
    """Indented, but a row a line."""
    rows = ",\n".join("  " + json.dumps(row) for row in document["rows"])
    head = json.dumps({name: value for name, value in document.items() if name != "rows"}, indent=1)
    return head.removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.kernel_resources", description=__doc__)
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"default: {DEFAULT_OUT}")
    parser.add_argument("--doc", type=Path, default=DEFAULT_DOC, help=f"default: {DEFAULT_DOC}")
    given = parser.parse_args(arguments)
    try:
        document = measure(given.library)
    except (ValueError, BuildError, NoTool) as error:
        print(f"kernel_resources: {error}", file=sys.stderr)
        return 1
    given.out.write_text(_json(document))
    given.doc.write_text(markdown(document))
    for arch, names in document["spilling"].items():
        print(f"sm_{arch}: {document['kernels'][arch]} kernels, {len(names)} spill")
    return 0


if __name__ == "__main__":
    sys.exit(main())
