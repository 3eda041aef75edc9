"""Token buckets in shared memory: two processes together get no more than one would."""

import os
import subprocess
import sys
import time

import pytest

from milkweed.server.security.bucket import TokenBucket
from milkweed.server.security.shared_buckets import SharedBuckets

RATE, BURST = 50.0, 20


def test_it_takes_and_gives_like_a_bucket_of_one_process() -> None:
    one, shared = TokenBucket(RATE, BURST, 0.0), SharedBuckets.make().bucket("a", RATE, BURST, 0.0)
    for step in range(400):
        now, count = step * 0.013, 1 + step % 7 * (step % 5 == 0)
        assert shared.take(count, now) == pytest.approx(one.take(count, now))


def test_buckets_of_one_name_are_one_and_others_are_not() -> None:
    table = SharedBuckets.make()
    other_view = SharedBuckets(os.dup(table.file))
    first, second = table.bucket("a", RATE, BURST, 0.0), other_view.bucket("a", RATE, BURST, 0.0)
    assert first.take(BURST, 0.0) == 0.0
    assert second.take(1, 0.0) == pytest.approx(1 / RATE)
    assert table.bucket("b", RATE, BURST, 0.0).take(1, 0.0) == 0.0
    assert table.bucket("a", 2 * RATE, BURST, 0.0).take(1, 0.0) == 0.0  # another limit begins anew


def test_many_names_have_their_own() -> None:
    table = SharedBuckets.make()
    names = [f"caller {number}" for number in range(2000)]
    for name in names:
        assert table.bucket(name, 1.0, 1, 0.0).take(1, 0.0) == 0.0
    for name in names:
        assert table.bucket(name, 1.0, 1, 0.0).take(1, 0.0) == pytest.approx(1.0)


def test_a_full_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.server.security.shared_buckets.SLOTS", 4)
    table = SharedBuckets(os.dup(SharedBuckets.make().file))
    for number in range(4):
        table.bucket(str(number), 1.0, 1, 0.0).take(1, 0.0)
    fifth = table.bucket("4", 1.0, 1, 0.0)
    with pytest.raises(RuntimeError, match="more than 4 token buckets"):
        fifth.take(1, 0.0)


DRAW = """
import sys, time
from milkweed.server.security.shared_buckets import SharedBuckets
bucket = SharedBuckets(int(sys.argv[1])).bucket("a", float(sys.argv[2]), int(sys.argv[3]), time.monotonic())
end = time.monotonic() + 1.0
got = 0
while time.monotonic() < end:
    got += bucket.take(1, time.monotonic()) == 0.0
print(got)
"""


def test_processes_together_get_no_more_than_the_rate() -> None:
    table, began = SharedBuckets.make(), time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", DRAW, str(table.file), str(RATE), str(BURST)],
            pass_fds=(table.file,),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    got = [int(process.communicate(timeout=60)[0]) for process in processes]
    most = BURST + RATE * (time.monotonic() - began)
    assert sum(got) <= most
    assert sum(got) >= BURST
