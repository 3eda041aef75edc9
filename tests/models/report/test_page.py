"""The page: self-contained, escaped, well-formed, and with the report's figures in it."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

from milkweed.models.report import DataUse, Measured, RunReport, Skipped, Totals
from milkweed.models.report.page import MAX_SKIPPED, render_page

NASTY = '<script>alert(1)</script><img src=x onerror="y">&amp;\'"{{ 7777*7 }}'


class Reader(HTMLParser):
    """Elements, attributes, tables and texts of a page; fails on tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.text: list[str] = []
        self.feed(page)
        assert self.open == []
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if "td" in self.open or ("tr" in self.open and "th" in self.open):
            self.tables[-1][-1][-1] += data


def test_the_page_needs_nothing_but_itself(page: str) -> None:
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(reader.elements)
    for attribute, value in reader.attributes:
        assert not attribute.startswith("on"), attribute
        if attribute in ("src", "href", "xlink:href", "srcset", "action"):
            assert value.startswith("#"), (attribute, value)
    assert "@import" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {f"#{i}" for i in re.findall(r'id="([^"]*)"', page)}
    assert set(re.findall(r"https?://[^\s\"'<>]*", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)', page)) <= set(ids)


def test_layers_and_images_are_in_tables(full: RunReport, page: str) -> None:
    _, layers, images, skipped = Reader(page).tables
    assert layers[0] == ["layer", "weights", "MACs", "bytes", "error", "why"]
    assert len(layers) == 1 + 48
    row = next(row for row in full.layers if row.name == "blocks.3.mlp.fc1")
    shown = next(cells for cells in layers if cells[0].startswith("blocks.3.mlp.fc1"))
    assert shown == [
        "blocks.3.mlp.fc1monarch, 2 blocks, rank 48, 192 → 768",
        "147 → 92.2 k",
        "29.0 → 18.2 M",
        "590 → 369 kB",
        f"{row.error:.3f}",
        "Monarch, 65 % of ms in mlp",
    ]
    assert layers[1][0] == "blocks.0.attn.qkvmonarch, 2 blocks, rank 48, 192 → 576"
    assert layers[2][:2] == ["blocks.0.attn.projdense, 192 → 192", "36.9 k"]
    assert images[1:] == [["calibration", "photos", "248", "1"], ["held out", "held", "250", "none"]]
    assert skipped[1] == ["a/b.jpg", "undecodable", "truncated"]


def test_figures_come_with_their_meaning(page: str) -> None:
    words = Reader(page).words
    for text in (
        "Clearly less accurate than the original",
        "Top-1 accuracy 81.2 % → 74.4 % −6.8 points (± 2.5); ± 2.8 on 250 images",
        "Agreement 84.0 % same answer as the dense model, ± 2.3",
        "Parameters 5.72 M → 3.72 M 65.0 % of dense",
        "Latency 18.2 ms → 13.0 ms 71.4 % of dense",
        "1 warning 4 layers keep their number of weights",
        "Kept dense reacts most of all 2 layers: blocks.0.attn.proj, blocks.11.attn.proj",
        "the latency above is of CPU, 1 thread, float32, batches of 8",
        "milkweed compress ./deit ./deit-fast --images photos --speedup 3",
        "made from version a0b1c2d3e4f5 this version 3f2a91c04b7d",
        "layers mlp, qkv nblocks 1 rank not given permute yes plan.lr 0.0003",
        "reading 12 s search 12 min 13 s together 12 min 25 s",
    ):
        assert text in words
    assert "None" not in words


def test_text_from_outside_stays_text(full: RunReport) -> None:
    assert full.frontier is not None
    models = tuple(replace(model, name=NASTY, computed_by=NASTY) for model in full.frontier.models)
    nasty = replace(
        full,
        arch=NASTY,
        arguments={NASTY: NASTY},
        command=NASTY,
        warnings=(NASTY,),
        layers=(replace(full.layers[0], name=NASTY, reason=NASTY), replace(full.layers[1], name=NASTY, reason=NASTY)),
        frontier=replace(full.frontier, notes=(NASTY,), measured_on=NASTY, models=models),
        data=(
            DataUse(role="training", folder=NASTY, images=1, skipped=(Skipped(image=NASTY, code="x", message=NASTY),)),
        ),
    )
    page = render_page(nasty)
    reader = Reader(page)
    assert not {"script", "img"} & set(reader.elements)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert reader.words.count(NASTY) >= 14
    assert "54439" not in reader.words


def test_what_is_missing_is_not_invented(full: RunReport) -> None:
    """A run without labels, latencies and a dense model to compare with."""
    rows = tuple(replace(row, error=None, reason="") for row in full.layers)
    least = replace(
        full,
        before=None,
        after=Measured(agreement=99.0, images=100),
        totals_before=None,
        totals_after=Totals(parameters=10, macs=20, bytes=30),
        layers=rows,
        frontier=None,
        measured_on=None,
    )
    reader = Reader(render_page(least))
    assert reader.tables[0][0] == ["layer", "weights", "MACs", "bytes"]
    assert not reader.elements["svg"]
    for absent in ("None", "Latency", "Top-1", "KL 0", "of dense"):
        assert absent not in reader.words
    assert "Agreement 99.0 %" in reader.words
    assert "Kept dense no reason on record 2 layers" in reader.words


def test_many_skipped_images_are_counted(bare: RunReport) -> None:
    skipped = tuple(Skipped(image=f"{number}.jpg", code="x", message="y") for number in range(MAX_SKIPPED + 7))
    reader = Reader(render_page(replace(bare, data=(DataUse(role="training", folder="f", images=3, skipped=skipped),))))
    assert len(reader.tables[1]) == 1 + MAX_SKIPPED
    assert "57 images skipped (training)" in reader.words
    assert "and 7 more: report.json names all" in reader.words
