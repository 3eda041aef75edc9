"""Photos in, answers out: of one model, and of two side by side."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from .tab import AIRPLANE, BODY, SHIP, SKY, expect, expect_classes, expect_text, list_models, pick, transfer

if TYPE_CHECKING:
    from playwright.sync_api import Page

STAGES = ("receive", "fetch", "parse", "queue", "decode", "ready", "forward", "postprocess", "deliver", "respond")


def test_a_dropped_photo_gets_its_label(page: "Page", pair: Any) -> None:
    with page.expect_response(lambda response: "/classify" in response.url) as response:
        page.dispatch_event("#drop", "drop", {"dataTransfer": transfer(page, "a plane.png", AIRPLANE)})
    expect_classes(page, "airplane")
    said = httpx.post(pair.url + "/classify", content=AIRPLANE).json()["results"][0]["predictions"]
    rows = [row.split("\n") for row in page.locator(".classes li").all_inner_texts()]
    assert [label for label, _ in rows] == [prediction["label"] for prediction in said]
    shares = [float(share.removesuffix(" %")) for _, share in rows]
    assert shares == pytest.approx([100 * prediction["score"] for prediction in said], abs=0.51)
    lengths = page.locator(".classes i").evaluate_all("(bars) => bars.map((bar) => bar.style.backgroundSize)")
    percents = [float(re.findall(r"[\d.]+(?=%)", length)[0]) for length in lengths]
    assert percents == pytest.approx([100 * prediction["score"] for prediction in said], abs=0.01)
    assert page.locator(".card h3").inner_text() == "a plane.png"
    timings = dict(part.split(";dur=") for part in response.value.headers["server-timing"].split(", "))
    bar = {part.get_attribute("data-stage"): part.bounding_box()["width"] for part in page.locator(".bar span").all()}
    assert tuple(bar) == STAGES
    longest = max(STAGES, key=lambda stage: float(timings[stage]))
    assert max(bar, key=lambda stage: bar[stage]) == longest
    share = float(timings[longest]) / float(timings["total"])
    assert bar[longest] / sum(bar.values()) == pytest.approx(share, abs=0.05)
    assert longest in page.locator(".stages").inner_text()
    expect_text(page, "#spoken", r"^a plane\.png: airplane, \d+ %$")
    preview = page.locator(".picture canvas")  # small: 640 x 480 px would stay in memory
    assert preview.evaluate("({ width, height }) => [width, height]") == [566, 425]
    corner = preview.evaluate("(canvas) => [...canvas.getContext('2d').getImageData(5, 420, 1, 1).data]")
    assert corner == pytest.approx([*SKY, 255], abs=3)
    assert page.evaluate("() => [seen.made, seen.blobs.size]") == [1, 0]


def test_pasted_photos(page: "Page") -> None:
    page.evaluate(
        "(data) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }))",
        transfer(page, "image.png", AIRPLANE),
    )
    expect_classes(page, "airplane")


def test_a_dropped_folder_is_the_pictures_in_it(page: "Page", tmp_path: Path) -> None:
    files = {"9.png": SHIP, "10.png": SHIP, "inner/plane.png": AIRPLANE, "notes.txt": b"no picture"}
    for name, data in files.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    drag = {"items": [], "files": [str(tmp_path / "photos")], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 400, "y": 200, "data": drag})
        expect(page.locator("#drop.over")).to_have_count(int(kind == "dragOver"))
    expect_classes(page, "ship", "ship", "airplane")
    assert page.locator(".card h3").all_inner_texts() == ["9.png", "10.png", "plane.png"]


def test_a_bar_is_full_however_short_the_request(page: "Page") -> None:
    headers = {"server-timing": "parse;dur=0.3, respond;dur=0.1, total;dur=0.4"}
    page.route("**/classify?*", lambda route: route.fulfill(body=BODY, headers=headers))
    pick(page, a=SHIP)
    expect_text(page, ".stages", r"^0\.40 ms in the server")
    widths = page.locator(".bar").evaluate("(bar) => [...bar.children, bar].map((part) => part.clientWidth)")
    assert widths[0] + widths[1] == pytest.approx(widths[2], abs=2.1)
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.05)


def test_many_photos_a_few_at_a_time(page: "Page") -> None:
    running = [0]

    def count(step: int) -> Any:
        return lambda request: running.append(running[-1] + step) if "/classify" in request.url else None

    page.on("request", count(1))
    page.on("requestfinished", count(-1))
    pick(page, **{str(number): (SHIP, AIRPLANE)[number % 2] for number in range(12)})
    expect_text(page, "#progress", "^12 of 12$")
    expect(page.locator("#spoken")).to_have_text("12 photos are done.")
    expect_classes(page, *["ship", "airplane"] * 6)
    assert 2 <= max(running) <= 4
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator("#answers")).to_be_hidden()


def test_what_a_model_knows_is_said_where_it_is_little(page: "Page", models: Any) -> None:
    for name in ("monarch", "other"):
        page.select_option("#model", name)
        known = ", ".join(models[name]["labels"])
        expect(page.locator("#knows")).to_contain_text(f"{name} knows {known}. Whatever else a photo shows")
    list_models(page, {**models["other"], "labels": None})
    page.reload()
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#knows")).to_be_hidden()
    expect(page.locator("#curl")).to_contain_text("/classify")


def test_a_model_without_classes_is_asked_for_embeddings(page: "Page", models: Any) -> None:
    list_models(page, {**models["other"], "labels": [], "num_classes": 0})
    page.reload()
    expect(page.locator("#knows")).to_have_text(
        "other has no classes: it gives embeddings, which this page does not show."
    )
    expect(page.locator("#curl")).to_contain_text("/embed")


def test_one_model_has_no_list_and_its_labels_are_words(page: "Page", models: Any) -> None:
    sizes = {"resident": 103, "dense_equivalent": 100, "on_disk": 103}
    list_models(page, {**models["fast"], "labels": ["great_white_shark"], "parameter_bytes": sizes})
    page.reload()
    expect(page.locator("#state")).to_have_text("ready")
    for choice in ("#model-choice", "#beside-choice"):
        expect(page.locator(choice)).to_be_hidden()
    expect(page.locator("#about-name")).to_have_text("Model fast")
    expect(page.locator("#knows")).to_contain_text("great white shark")
    expect(page.locator("#facts")).not_to_contain_text("beside dense")  # it is larger
    page.route("**/classify?*", lambda route: route.fulfill(body=BODY.replace('"label": "a"', '"label": "a_b"')))
    pick(page, a=SHIP)
    expect_text(page, ".classes", "^a b")
    expect(page.locator("#spoken")).to_have_text("a.png: a b, 100 %")


def test_versions_of_one_name_are_told_apart(page: "Page", models: Any) -> None:
    model = models["dense"]
    list_models(page, *({**model, "number": number} for number in (1, 2)))
    page.reload()
    page.select_option("#model", "dense 2")
    expect(page.locator("#curl")).to_contain_text("-H 'X-Model-Version: 2'")
    with page.expect_request("**/classify?model=dense") as request:
        pick(page, a=SHIP)
    assert request.value.headers["x-model-version"] == "2"


def test_two_models_side_by_side(tab: "Page", models: Any) -> None:
    assert (tab.input_value("#model"), tab.input_value("#beside")) == ("monarch", "dense")
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(f"> {request.url}"))
    tab.on("requestfinished", lambda request: requests.append(f"< {request.url}"))
    pick(tab, a=SHIP, b=AIRPLANE)
    expect_text(tab, "#progress", "^2 of 2$")
    expect(tab.locator(".badge")).to_have_text(["same answer", "same answer"])
    expect_classes(tab, "ship", "ship", "airplane", "airplane")
    for count in (3, 4):  # also where they come one by one
        pick(tab, c=SHIP)
        expect_text(tab, "#progress", f"^{count} of {count}$")
    order = [re.sub(r"^(.).*model=(.).*", r"\1\2", request) for request in requests if "/classify" in request]
    assert order == [">m", "<m", ">d", "<d", ">d", "<d", ">m", "<m"] * 2  # one at a time, and they take turns
    table = {row.split("\t")[0]: row.split("\t")[1:] for row in tab.locator("tbody tr").all_inner_texts()}
    sizes = [models[name]["parameter_bytes"]["resident"] for name in ("monarch", "dense")]
    *shown, gain = table["in memory"]
    assert shown == [f"{size / 1e6:.1f} MB" for size in sizes]
    assert gain.split() == ["monarch", f"{sizes[1] / sizes[0]:.2f}", "×"]
    assert tab.locator("tr", has_text="in memory").locator("td > b").inner_text() == shown[0]
    assert table["Monarch layers"][:2] == ["16", "0"]
    assert table["same answer"][:2] == ["4 of 4", "100 %"]
    assert all(value.endswith(" ms") for value in (*table["forward"][:2], *table["whole request"][:2]))
    tab.select_option("#beside", "other")  # asks all again
    expect(tab.locator(".badge")).to_have_text(["other answer"] * 4)
    expect(tab.locator("tbody tr", has_text="same answer")).to_have_text(re.compile("0 of 4"))


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        ({"monarch": 4.0, "dense": 9.0}, "monarch has a speedup of 2.3 over dense (medians of 1 photo)."),
        ({"monarch": 9.0, "dense": 4.0}, "dense has a speedup of 2.3 over monarch (medians of 1 photo)."),
        (
            {"monarch": 4.2, "dense": 4.0},
            "monarch and dense differ by less than 10 % in speed (medians of 1 photo); monarch takes {share} % of the "
            "other’s memory.",
        ),
        (
            {"monarch": 0.0, "dense": 4.0},
            "monarch takes {share} % of the other’s memory. Which is faster shows with the first photo.",
        ),
    ],
)
def test_which_of_two_is_faster_is_said_in_words(tab: "Page", models: Any, ms: dict[str, float], said: str) -> None:
    monarch, dense = (models[name]["parameter_bytes"]["resident"] for name in ("monarch", "dense"))
    share = round(100 * monarch / dense)
    expect_text(tab, "#facts .lead", f"^monarch takes {share} % of .* the first photo")

    def answer(route: Any) -> None:
        forward = ms[route.request.url.partition("model=")[2]]
        route.fulfill(body=BODY, headers={"server-timing": f"forward;dur={forward}, total;dur=12"})

    tab.route("**/classify?*", answer)
    pick(tab, a=SHIP)
    expect_text(tab, "#progress", "^1 of 1$")
    expect(tab.locator("#facts .lead")).to_have_text(said.format(share=share))
    if min(ms.values()):
        fast = min(ms, key=lambda name: ms[name])
        gain = tab.locator("tr", has_text="forward").locator("td").last
        assert gain.text_content() == f"{fast} {max(ms.values()) / min(ms.values()):.2f} ×"
