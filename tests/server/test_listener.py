"""What still waits in a listener when it closes."""

import errno
from typing import Any

import pytest

from milkweed.server.listener import accept_all


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE, errno.ECONNABORTED])
def test_what_cannot_be_accepted_keeps_nobody_else_from_being_answered(number: int) -> None:
    class Listener:
        def __init__(self) -> None:
            self.waiting: list[Any] = ["first", "second"]

        def setblocking(self, flag: bool) -> None:
            assert not flag

        def listen(self, backlog: int) -> None:
            assert backlog == 0

        def accept(self) -> tuple[Any, str]:
            if not self.waiting:
                raise OSError(number, "no")
            return self.waiting.pop(0), "address"

    assert accept_all(Listener()) == ["first", "second"]  # type: ignore[arg-type, comparison-overlap]
