"""API keys: what their file may say, whose key one is, and what its caller may still ask."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milkweed.server.errors import ServiceError
from milkweed.server.security.key_store import KeyStore, TokenBucket
from milkweed.server.security.keys import KeysError, hash_key, key_block, new_key, parse_keys, read_keys

HEX = "ab" * 32
OTHER = "cd" * 32


def test_new_keys_are_long_and_random_and_kept_as_hashes() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert re.fullmatch(r"mw_[A-Za-z0-9_-]{43}", key)
    block = key_block("cam", key)
    assert key not in block
    [caller] = parse_keys(tomllib.loads(block)).values()
    assert (caller.name, caller.digests) == ("cam", (hash_key(key.encode()),))
    # SHA-256 of "abc", FIPS 180-2 appendix B.1
    assert hash_key(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_entries_of_one_name_are_keys_of_one_caller() -> None:
    row = {"name": "a", "sha256": HEX}
    second = {"name": "a", "sha256": OTHER, "requests_per_second": 2.0, "request_burst": 9}
    callers = parse_keys({"key": [row, second, {"name": "b", "sha256": "ef" * 32}]})
    assert set(callers) == {"a", "b"}
    assert callers["a"].digests == (bytes.fromhex(HEX), bytes.fromhex(OTHER))
    assert (callers["a"].requests_per_second, callers["a"].request_burst) == (2.0, 9)
    assert callers["b"].requests_per_second is None
    assert parse_keys({}) == {}  # nobody may ask


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"name": "a", "sha256": "mw_the-key-itself"}], "key 1 (a): sha256 must be 64 digits"),
        ([{"name": "a", "sha256": HEX.upper()}], "key 1 (a): sha256 must be 64 digits of lower case hex"),
        ([{"name": "a"}], "key 1 (a): sha256"),
        ([{"name": "a b", "sha256": HEX}], "key 1: name: "),
        ([{"sha256": HEX}], "key 1: name: "),
        ([{"name": "a", "sha256": HEX, "rate": 1}], "key 1 (a): rate: extra inputs"),
        ([{"name": "a", "sha256": HEX, "requests_per_second": 0.0}], "key 1 (a): requests_per_second: "),
        ([{"name": "a", "sha256": HEX, "requests_per_second": "1"}], "key 1 (a): requests_per_second: "),
        ([{"name": "a", "sha256": HEX, "image_burst": 3}], "key 1 (a): image_burst without images_per_second"),
        ([{"name": "a", "sha256": HEX}, {"name": "b", "sha256": HEX}], "key 2 (b): a has the same sha256"),
        (
            [
                {"name": "a", "sha256": HEX, "requests_per_second": 1.0},
                {"name": "a", "sha256": OTHER, "requests_per_second": 2.0},
            ],
            "key 2 (a): requests_per_second = 2.0, another key of a says 1.0",
        ),
        ([{"name": f"n{i}", "sha256": f"{i:064x}"} for i in range(1001)], "1001 names; the limit is 1000"),
        ("x", "expected [[key]] entries and nothing else"),
        (["x"], "key 1: "),
    ],
)
def test_the_error_of_a_wrong_file_is_one_line_without_a_key(rows: Any, words: str) -> None:
    with pytest.raises(KeysError) as caught:
        parse_keys({"key": rows})
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert "the-key-itself" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"[[key]", b"\xff\xfe", b"x = 1\n", b"#" * ((4 << 20) + 1)])
def test_the_error_of_an_unreadable_file_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeysError, match=r"^API keys .*keys\.toml"):
        read_keys(path)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Keys:
    """A key store on a file that a test writes, with a clock that the test turns."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.clock = path, Clock()
        path.write_text(text)
        self.store = KeyStore(path, self.clock)
        self.store.reload()

    def ask(self, key: str) -> float | None:
        """0 where a request is let in, else Retry-After; None for no caller."""
        account = self.store.find(key.encode())
        if account is None:
            return None
        try:
            self.store.charge(account, "requests")
        except ServiceError as error:
            return error.retry_after_seconds
        return 0


def entry(name: str, key: str, more: str = "") -> str:
    return key_block(name, key) + more + "\n"


def test_only_whole_keys_are_found(tmp_path: Path) -> None:
    first, second, unknown = new_key(), new_key(), new_key()
    store = Keys(tmp_path / "k", entry("a", first) + entry("a", second) + entry("b", "x" * 256)).store
    for key in (first, second):
        found = store.find(key.encode())
        assert found is not None
        assert found.name == "a"
    owner = store.find(b"x" * 256)
    assert owner is not None
    assert owner.name == "b"
    for wrong in (unknown, first[:-1], first + "a", first.upper(), "", hash_key(first.encode()).hex(), "x" * 257):
        assert store.find(wrong.encode()) is None


def test_all_keys_of_a_caller_share_one_rate_which_a_new_file_does_not_reset(tmp_path: Path) -> None:
    one, two = new_key(), new_key()
    limits = "requests_per_second = 0.5\nrequest_burst = 2\n"
    keys = Keys(tmp_path / "k", entry("a", one, limits) + entry("a", two) + entry("free", "y"))
    assert [keys.ask(one), keys.ask(two), keys.ask(one), keys.ask(two)] == [0, 0, 2, 2]
    assert [keys.ask("y") for _ in range(100)] == [0] * 100
    three = new_key()
    keys.path.write_text(entry("a", two, limits) + entry("a", three))
    keys.store.reload()
    assert [keys.ask(one), keys.ask(two), keys.ask(three), keys.ask("y")] == [None, 2, 2, None]
    keys.clock.now += 2
    assert [keys.ask(three), keys.ask(two)] == [0, 2]


def test_more_images_than_the_burst_are_let_in_and_owed(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "k", entry("a", "k", "images_per_second = 10.0\nimage_burst = 20\n"))
    account = keys.store.find(b"k")
    assert account is not None
    keys.store.charge(account, "images", 50)  # a full bucket gives them, and owes 30
    with pytest.raises(ServiceError, match="10 images a second, 20 at once") as caught:
        keys.store.charge(account, "images", 5)
    assert caught.value.retry_after_seconds == 4  # 30 owed and 5 wanted, 10 a second
    keys.clock.now += 3.5
    keys.store.charge(account, "images", 5)


@given(
    st.floats(0.01, 1e4),
    st.integers(1, 1000) | st.none(),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), max_size=60),
)
def test_a_bucket_holds_its_rate_and_opens_when_it_said(
    rate: float, burst: int | None, asked: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now, given_out, largest = 0.0, 0, 1
    for pause, count in asked:
        now += pause
        wait = bucket.take(count, now)
        if wait:
            assert bucket.take(count, now + wait * 0.99) > 0  # no sooner
            now += wait * 1.0001 + 1e-6
            assert bucket.take(count, now) == 0
        given_out, largest = given_out + count, max(largest, count)
    assert given_out <= bucket.burst + rate * now * 1.001 + largest + 1e-6
    assert bucket.burst == (burst or max(1, math.ceil(rate)))
