"""Levers: files that a running server obeys, so that it hangs, fails or takes long when somebody says so."""

from pathlib import Path

from ..patience import wait_until

_TAKEN_SECONDS = 30.0


class Levers:
    """Nothing is pulled at first.

    Args:
        folder: of the files; made here.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def hold(self) -> None:
        """Every batch hangs, until the levers are let go."""
        self._pull("hold")

    def fail(self, share: float = 1.0) -> None:
        """Such a share of all batches fails."""
        self._pull("fail", share)

    def slow(self, seconds: float) -> None:
        """Every batch takes so much longer, without the CPU."""
        self._pull("slow", seconds)

    def lock(self, count: int) -> None:
        """During every batch nothing else runs in the process while it adds up so many numbers."""
        self._pull("lock", count)

    def grow(self, size_bytes: int) -> None:
        """Every batch leaves so much memory behind."""
        self._pull("grow", size_bytes)

    def lose_decoder(self) -> None:
        """DALI's graph is lost with every batch, and cannot be built again."""
        self._pull("decoder")

    def end_thread(self) -> None:
        """The thread of whichever engine has the next batch is ended; returns once it was."""
        self._pull("end")
        wait_until(lambda: not (self.folder / "end").exists(), _TAKEN_SECONDS, "a batch that ends its thread")

    def let_go(self) -> None:
        """Batches are as ever."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def _pull(self, name: str, number: float | None = None) -> None:
        coming = self.folder / f".{name}"
        coming.write_text("" if number is None else str(number), encoding="utf-8")
        coming.rename(self.folder / name)  # whole at once: it is read at any moment
