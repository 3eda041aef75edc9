"""The stamp of a built kernel library, a JSON file beside it: its sources, architectures and toolkit."""

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "csrc"
LIBRARY = Path(__file__).resolve().parents[1] / "_native" / "libmilkweed_kernels.so"

SOURCE_SUFFIXES = (".cu", ".cuh", ".h")

FORMAT = 1
"""The version of the JSON; a library with another one is refused."""


@dataclass(frozen=True)
class LibraryStamp:
    """What is known of a built library without opening it.

    Args:
        library_sha256: hash of the library file, which shows that the two files belong together.
        source_hash: hash of every file in csrc when it was built.
        archs: `80`, `90a`, ...: machine code of that architecture; `compute_90`: PTX that newer devices translate.
        nvcc: version of the compiler, `13.0`; the library needs the CUDA runtime of the same major version.
        torch_headers: version of PyTorch whose headers it was built with; it loads in any from 2.10 on.
        build_key: hash of sources, flags, architectures and versions; if it changes, the library is built again.
    """

    library_sha256: str
    source_hash: str
    archs: tuple[str, ...]
    nvcc: str
    torch_headers: str
    build_key: str
    format: int = FORMAT

    @property
    def cuda_major(self) -> int:
        return int(self.nvcc.partition(".")[0])

    def arch_for(self, capability: tuple[int, int]) -> str | None:
        """Return the architecture whose code a device of this compute capability runs, or None."""
        major, minor = capability
        exact = f"{major}{minor}"
        for arch in (f"{exact}a", exact):
            if arch in self.archs:
                return arch
        # Machine code without the suffix runs on later devices of the same generation, PTX on all later devices.
        older = [a for a in self.archs if a.isdigit() and int(a) // 10 == major and int(a) % 10 < minor]
        if older:
            return max(older, key=int)
        ptx = [a for a in self.archs if a.startswith("compute_") and int(a.removeprefix("compute_")) <= int(exact)]
        return max(ptx, key=lambda a: int(a.removeprefix("compute_")), default=None)


def stamp_path(library: Path) -> Path:
    """Return the path of the JSON beside a library."""
    return library.with_suffix(".json")


def write_stamp(library: Path, stamp: LibraryStamp) -> None:
    """Write the JSON beside a library."""
    stamp_path(library).write_text(json.dumps(asdict(stamp), indent=1) + "\n")


def read_stamp(library: Path) -> LibraryStamp:
    """Read the JSON beside a library.

    Raises:
        ValueError: there is none, or it is not a stamp; the message is one line.
    """
    path = stamp_path(library)
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    names = {field.name for field in fields(LibraryStamp)}
    if not isinstance(values, dict) or values.get("format") != FORMAT or set(values) != names:
        raise ValueError(f"{path} is not of format {FORMAT}")
    return LibraryStamp(**{**values, "archs": tuple(values["archs"])})


def source_files(folder: Path = SOURCES, suffixes: Collection[str] = SOURCE_SUFFIXES) -> list[Path]:
    """Return every source file in a folder: by default those that the library is built from."""
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def source_hash(folder: Path = SOURCES, suffixes: Collection[str] = SOURCE_SUFFIXES) -> str:
    """Hash the names and contents of every source file in a folder: by default those of the library."""
    return hash_of(
        part
        for path in source_files(folder, suffixes)
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes())
    )


def hash_of(parts: Iterable[bytes]) -> str:
    """Return the sha256 of byte strings and their lengths, in hex; different sequences have different hashes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
