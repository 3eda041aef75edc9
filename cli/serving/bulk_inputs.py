"""Reads images of object stores and websites (by fsspec), of webdataset tars and of Parquet tables.

Sources: fsspec (filesystem_spec), webdataset's format (https://github.com/webdataset/webdataset), and the image
columns of Hugging Face's datasets.
"""

import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from ...kernels.installation import install_command
from ...loaders.headers.info import IMAGE_SUFFIXES
from ...models.errors import first_line
from ..errors import CommandError

TABLE_SUFFIX = ".parquet"
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")

FETCHED_AT_ONCE = 32
"""So many objects are fetched side by side, while as many are answered."""

MAX_BYTES = 64 << 20
"""No larger object, member or cell is read into memory; a model takes 20 MiB unless it is told otherwise."""

ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Unreadable:
    """Stands for an image that cannot be read. `read` raises an OSError that says why."""

    why: str

    def read(self) -> bytes:
        """Raise the error."""
        raise OSError(self.why)


Content = bytes | Path | Unreadable
"""What stands in a file; a path is read, or not, by what answers."""


def protocol(name: str) -> str:
    """Return the protocol of a URL (`s3`, `gs`, `https`, ...); empty for a path."""
    return name.partition("://")[0] if "://" in name else ""


def holds_images(name: str) -> bool:
    """Tell whether a file is a tar or a table, by the suffix of its name."""
    return name.lower().endswith((*TAR_SUFFIXES, TABLE_SUFFIX))


def expand_url(url: str) -> list[str]:
    """List the images, tars and tables that a URL stands for, by name: all below one that ends with `/`, those that a
    pattern with `*` names, or else the one object.

    Raises:
        CommandError: nothing is there, or the store refuses.
    """
    files = _file_system(url)
    path = files._strip_protocol(url)
    try:
        if "*" in url:
            paths = files.glob(path)
        elif url.endswith("/") or (_may_be_folder(url) and files.isdir(path)):
            paths = files.find(path)
        else:
            return [url]
    except Exception as error:  # each store has errors of its own
        raise CommandError(f"IMAGE {url}: {first_line(error)}") from error
    names = sorted(files.unstrip_protocol(path) for path in paths)
    images = [name for name in names if holds_images(name) or _is_image(name)]
    if not images:
        raise CommandError(f"IMAGE {url}: no images, tars or tables there, of {len(names)} objects")
    return images


def fetch(urls: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """Read the objects of one store, in order; the next ones are fetched while these are used."""
    batches = [urls[begin : begin + FETCHED_AT_ONCE] for begin in range(0, len(urls), FETCHED_AT_ONCE)]
    with ThreadPoolExecutor(1, "milkweed-fetch") as ahead:
        coming = ahead.submit(_fetched, batches[0])
        for batch, after in zip(batches, [*batches[1:], []], strict=True):
            contents = coming.result()
            coming = ahead.submit(_fetched, after)
            yield from zip(batch, contents, strict=True)


def images_within(name: str, column: str) -> Iterator[tuple[str, Content]]:
    """Read the images of a tar or a table one after another, named `FILE[MEMBER]` and `FILE[ROW]`.

    What cannot be read from some place on ends with an Unreadable in the name of the file.

    Args:
        column: of a table: bytes, or a struct that has `bytes`.
    """
    try:
        with _opened(name) as file:
            for part, content in _rows(file, column) if name.lower().endswith(TABLE_SUFFIX) else _members(file):
                yield f"{name}[{part}]", content
    except CommandError:
        raise
    except Exception as error:
        yield name, Unreadable(first_line(error))


class _Member(tarfile.TarInfo):
    """A member of a tar. Where the tar ends without its end marker, images may be missing."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        """Read a header; an end without a marker is an error."""
        if not buf:
            raise tarfile.ReadError("it has no end marker")
        return super().frombuf(buf, encoding, errors)


def _members(file: IO[bytes]) -> Iterator[tuple[str, Content]]:
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=_Member) as tar:
        for member in tar:
            if member.isreg() and _is_image(member.name):
                content = cast("IO[bytes]", tar.extractfile(member)).read(MAX_BYTES + 1)
                yield member.name, _limited(content)


def _rows(file: IO[bytes], column: str) -> Iterator[tuple[str, Content]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise CommandError(f"tables need pyarrow: {install_command('bulk')} ({error})") from None
    table = parquet.ParquetFile(file)
    if column not in table.schema_arrow.names:
        raise ValueError(f"it has no column {column}, but {', '.join(table.schema_arrow.names)} (--column)")
    cells = (cell for rows in table.iter_batches(ROWS_AT_ONCE, columns=[column]) for cell in rows.column(0))
    for place, cell in enumerate(cells):
        value = cell.as_py()
        yield str(place), _cell(value.get("bytes") if isinstance(value, dict) else value, column)


def _cell(value: object, column: str) -> Content:
    if isinstance(value, bytes):
        return _limited(value)
    return Unreadable(f"column {column} holds {'nothing' if value is None else type(value).__name__}, not bytes")


def _fetched(urls: Sequence[str]) -> list[Content]:
    """Read objects side by side."""
    if not urls:
        return []
    files = _file_system(urls[0])
    paths = [files._strip_protocol(url) for url in urls]
    contents = files.cat_ranges(paths, 0, MAX_BYTES + 1, on_error="return")
    return [_limited(item) if isinstance(item, bytes) else Unreadable(_reason(item)) for item in contents]


def _reason(error: BaseException) -> str:
    # A store's error of this kind says no more than the name.
    return "there is no such object" if isinstance(error, FileNotFoundError) else first_line(error)


def _limited(content: bytes) -> Content:
    return content if len(content) <= MAX_BYTES else Unreadable(f"more than {MAX_BYTES >> 20} MiB")


def _opened(name: str) -> IO[bytes]:
    if not protocol(name):
        return open(name, "rb")
    files = _file_system(name)
    return cast("IO[bytes]", files.open(files._strip_protocol(name), "rb"))


def _file_system(url: str) -> Any:
    """The store of a URL, as fsspec's configuration and the store's own variables have it."""
    try:
        import fsspec
    except ImportError as error:
        raise CommandError(f"IMAGE {url}: needs fsspec: {install_command('bulk')} ({error})") from None
    try:
        return fsspec.filesystem(protocol(url))
    except Exception as error:  # an unknown protocol, one whose package is missing, wrong options
        raise CommandError(f"IMAGE {url}: {first_line(error)}") from error


def _may_be_folder(url: str) -> bool:
    """Whether it is worth asking the store; a website would send the whole page."""
    return protocol(url) not in ("http", "https") and not holds_images(url) and not _is_image(url)


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES
