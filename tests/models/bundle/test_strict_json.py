"""Strict JSON takes plain values, and refuses what could not be written again."""

import json

import pytest

from milkweed.models.bundle import strict_json as json_document
from milkweed.models.bundle.strict_json import MAX_JSON_DEPTH, canonical_json, parse_json, readable_json


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e999", "not strict JSON: '1e999' is beyond the range of a double"),
        ("-1e999", "not strict JSON: '-1e999' is beyond the range of a double"),
        ("1" + "0" * 309, "is beyond the range of a double"),
        ("-" + "9" * 5000, "is beyond the range of a double"),
        ("Infinity", "not strict JSON: Infinity is not a number"),
        ("NaN", "not strict JSON: NaN is not a number"),
        ('"\\ud800"', r"not strict JSON: '\\ud800' has half of a surrogate pair"),
        ('{"\\udfff": 1}', r"not strict JSON: '\\udfff' has half of a surrogate pair"),
        ('{"a": 1, "b": 2, "b": 3}', "not strict JSON: key 'b' appears twice in one object"),
        (f'{{"{"k" * 9999}": 1, "{"k" * 9999}": 1}}', r"key 'k+\.\.\. appears twice"),
    ],
)
def test_json_that_could_not_be_written_again_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_json(f'{{"a": [{text}]}}'.encode())
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < 200


def test_json_nested_too_deep_is_refused() -> None:
    assert parse_json(nested(MAX_JSON_DEPTH)) == json.loads(nested(MAX_JSON_DEPTH))
    assert parse_json(b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH) is not None
    for text in (nested(MAX_JSON_DEPTH + 1), nested(900), b"[" * 100_000):
        with pytest.raises(ValueError, match="JSON nested too deep: the limit is 64"):
            parse_json(text)


def test_plain_json_is_parsed() -> None:
    value = {"ä€😀": [0, -1, 2**63, 10**308, 1.5e-300, 1e308, True, None, "x\n", {}, []]}
    for write in (canonical_json, readable_json):
        assert parse_json(write(value)) == value


def test_many_keys_are_parsed_in_linear_time() -> None:
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)  # type: ignore[arg-type]

    names = [*map(str, range(2000)), "1999"]
    with pytest.raises(ValueError, match="key '1999' appears twice"):
        json_document._no_duplicates([(Key(name), 0) for name in names])
    assert compared < 5 * len(names)
