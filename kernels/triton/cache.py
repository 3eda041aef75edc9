"""Triton's cache of compiled kernels, with the C module that was compiled ahead; TRITON_CACHE_MANAGER names it."""

from triton.runtime.cache import FileCacheManager  # type: ignore[import-untyped]

from .driver_module import DRIVER_MODULE


class DriverModuleCache(FileCacheManager):  # type: ignore[misc]
    """Answers with the module of `driver_module` where it was compiled; all else is in TRITON_CACHE_DIR as usual.

    With it no code for the CPU is written at run time: that folder may be mounted `noexec`, as Docker mounts a tmpfs.
    """

    def get_file(self, filename: str) -> str | None:
        if filename == DRIVER_MODULE.name and DRIVER_MODULE.is_file():
            return str(DRIVER_MODULE)
        file: str | None = super().get_file(filename)
        return file
