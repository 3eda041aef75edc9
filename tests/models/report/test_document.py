"""A report survives its JSON form, and what is not one is refused by the name of the member."""

import json
from typing import Any

import pytest

from milkweed.models.report import DataUse, RunReport

LAYER: dict[str, Any] = {
    "name": "head",
    "kind": "dense",
    "in_features": 2,
    "out_features": 3,
    **dict.fromkeys(("dense_weights", "weights", "macs_before", "macs_after", "bytes_before", "bytes_after"), 6),
}
LEAST: dict[str, Any] = {"kind": "train", "arch": "vit", "version": "0"}


@pytest.mark.parametrize("name", ["full", "bare"])
def test_json_gives_the_same_report(name: str, request: pytest.FixtureRequest) -> None:
    report: RunReport = request.getfixturevalue(name)
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert RunReport.from_dict(document) == report
    assert document["format"] == 1


def test_what_is_left_out_has_its_default() -> None:
    report = RunReport.from_dict(LEAST | {"layers": [LAYER], "seconds_by_step": {"all": 3}})
    assert (report.layers[0].error, report.layers[0].reason, report.after, report.curve) == (None, "", None, ())
    assert isinstance(report.seconds_by_step["all"], float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "serve"}, "report: kind 'serve' must be one of compress, train"),
        ({"format": 2}, "report: format 2 must be 1"),
        ({"format": True}, "report.format True must be a whole number"),
        ({"version": None}, "report.version None must be text"),
        ({"extra": 1}, "report: unknown member 'extra'"),
        ({"layers": {}}, "report.layers must be a list, not {}"),
        ({"layers": [LAYER, 3]}, "report.layers[1] must be an object, not 3"),
        ({"layers": [LAYER | {"rank": 2.5}]}, "report.layers[0].rank 2.5 must be a whole number or null"),
        ({"layers": [LAYER | {"error": "big"}]}, "report.layers[0].error 'big' must be a number or null"),
        ({"layers": [{"name": "head"}]}, "report.layers[0]: member 'kind' is missing"),
        ({"after": {"images": 5, "top1": True}}, "report.after.top1 True must be a number or null"),
        ({"after": {"images": 5, "kl": float("nan")}}, "report.after.kl nan must be a number or null"),
        ({"data": [{"role": "fun", "folder": "x", "images": 1}]}, "report.data[0]: role 'fun' must be one of"),
        ({"history": [{"loss": [1]}]}, "report.history[0].loss [1] must be a number or a whole number or text or null"),
        ({"warnings": "none"}, "report.warnings must be a list, not 'none'"),
        ({"versions": {"torch": 2}}, "report.versions.torch 2 must be text"),
    ],
)
def test_what_is_no_report_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        RunReport.from_dict(LEAST | change)
    assert message in str(caught.value)


@pytest.mark.parametrize("document", [None, [], "x", 7])
def test_a_report_is_an_object(document: object) -> None:
    with pytest.raises(ValueError, match="report must be an object"):
        RunReport.from_dict(document)


def test_makers_of_reports_are_held_to_the_same() -> None:
    with pytest.raises(ValueError, match="role 'evaluate' must be one of calibration, recovery, held out"):
        DataUse(role="evaluate", folder="x", images=1)
    with pytest.raises(ValueError, match="kind 'x' must be one of"):
        RunReport(kind="x", arch="vit", version="0")
