"""W3C Trace Context: what is read of a caller's headers, and which requests are followed."""

import pytest

from milkweed.server.telemetry.trace_context import MAX_STATE_BYTES, SpanIds, sample

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def headers(traceparent: str, *states: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"traceparent", traceparent.encode()), *((b"tracestate", state) for state in states)]


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_a_sampled_parent_is_continued_whatever_the_share(flags: str) -> None:
    ids = sample(headers(f"00-{TRACE}-{SPAN}-{flags}", b"a=1", b"b=2"), 0)
    assert ids is not None
    assert (ids.trace_hex, f"{ids.parent_id:016x}", ids.state) == (TRACE, SPAN, b"a=1,b=2")
    assert ids.span_id not in (0, ids.parent_id)


@pytest.mark.parametrize("flags", ["00", "02"])
def test_an_unsampled_parent_is_obeyed_whatever_the_share(flags: str) -> None:
    assert sample(headers(f"00-{TRACE}-{SPAN}-{flags}"), 1) is None


def test_a_later_version_of_traceparent_may_have_more_fields() -> None:
    ids = sample(headers(f"01-{TRACE}-{SPAN}-01-more"), 0)
    assert ids is not None
    assert ids.trace_hex == TRACE


INVALID = [
    *("", "00", "é" * 55, "0" * 10_000),
    *(f"00-{TRACE}-{SPAN}{end}" for end in ("", "-1", "-01-more", "-01-")),
    *(f"ff-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01more", f"00-{TRACE.upper()}-{SPAN}-01"),
    *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}-{SPAN}-01"),
]


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_parent_begins_a_new_trace(text: str) -> None:
    assert sample(headers(text), 0) is None
    ids = sample(headers(text, b"a=1"), 1)
    assert ids is not None
    assert ids.trace_hex != TRACE
    assert (ids.parent_id, ids.state) == (0, b"")


def test_a_long_tracestate_is_dropped_whole() -> None:
    for extra, kept in ((0, MAX_STATE_BYTES), (1, 0)):
        ids = sample(headers(f"00-{TRACE}-{SPAN}-01", b"a=" + b"x" * (MAX_STATE_BYTES - 2 + extra)), 0)
        assert ids is not None
        assert len(ids.state) == kept


def test_the_share_of_requests_without_a_parent_is_traced() -> None:
    followed = [ids for _ in range(4000) if (ids := sample([], 0.25)) is not None]
    assert 800 < len(followed) < 1200  # 7 standard deviations
    assert len({ids.trace_id for ids in followed}) == len(followed)
    assert sample([], 0) is None


def test_the_response_header_names_trace_and_span() -> None:
    ids = SpanIds(int(TRACE, 16), int(SPAN, 16))
    assert ids.response_header == (b"traceresponse", f"00-{TRACE}-{SPAN}-01".encode())
