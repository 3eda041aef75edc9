"""The context of a request: its stages by name, what it tells of them, and the client that leaves."""

from dataclasses import fields

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.telemetry.context import Disconnect, RequestContext, Stages
from milkweed.server.telemetry.metrics import STAGES


def test_stages_have_the_names_and_the_order_of_the_metrics() -> None:
    assert [field.name for field in fields(Stages)] == list(STAGES[:-1])


def test_ended_stages_are_in_order_up_to_the_first_that_has_not_ended() -> None:
    assert Stages().ended() == ()
    assert Stages(receive=1.0).ended() == (1.0,)
    assert Stages(receive=1.0, fetch=2.0).ended() == (1.0,)
    assert Stages(receive=1.0, fetch=2.0, parse=3.0).ended() == (1.0, 2.0, 3.0)
    assert Stages(*range(1, 10)).ended() == (1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_where_nothing_is_fetched_that_takes_no_time() -> None:
    assert Stages(receive=1.0, parse=2.0).ended() == (1.0, 1.0, 2.0)


def test_server_timing_tells_what_has_ended_and_a_total() -> None:
    context = RequestContext([])
    context.stages.receive, context.stages.parse = context.started + 0.001, context.started + 0.003
    context.note_fetch(0.0005)
    names, values = zip(*(part.split(";dur=") for part in context.server_timing().decode().split(", ")), strict=True)
    assert names == ("receive", "fetch", "parse", "respond", "total")
    assert values[:3] == ("1.000", "0.500", "1.500")
    assert float(values[4]) == pytest.approx(sum(map(float, values[:4])), abs=0.002)


def test_respond_is_a_stage_only_of_a_request_that_passed_all_others() -> None:
    context = RequestContext([])
    context.stages = Stages(receive=context.started + 0.001)
    assert context.stages_ms(context.started + 0.005) == {"receive": 1.0}
    context.stages = Stages(*(context.started + number / 1e3 for number in range(1, 10)))
    assert context.stages_ms(context.started + 0.011) == dict.fromkeys(STAGES[:-1], 1.0) | {"respond": 2.0}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *((each, True) for each in (b"abc-1", b"abc-1.2/3")),
        *((each, False) for each in (b"two words", b'quote"quote', "ü".encode("latin-1"), b"x" * 129, b"")),
    ],
)
def test_a_request_id_is_kept_if_it_can_stand_in_a_header_and_a_log_line(given: bytes, kept: bool) -> None:
    request_id = RequestContext([(b"x-request-id", given)]).request_id
    assert (request_id == given) == kept
    assert kept or len(request_id) == 32


@pytest.mark.parametrize("text", [b"-1", b"1e3", b"", b"9" * 19])
def test_a_content_length_that_is_not_a_number_is_refused(text: bytes) -> None:
    with pytest.raises(ServiceError, match="Content-Length is not a number"):
        RequestContext([(b"content-length", text)]).content_length()


def test_a_disconnect_reaches_the_listener_of_its_time() -> None:
    heard: list[str] = []
    disconnect = Disconnect()
    disconnect.listen(lambda: heard.append("first"))
    disconnect.listen(None)
    disconnect.happen()
    assert heard == []
    disconnect.listen(lambda: heard.append("late"))  # it has happened already
    assert heard == ["late"]
