"""What the compiled kernels are on a device: there or not and why, and how much shared memory a block may have; what
makes kernels on this machine."""

from dataclasses import dataclass

import torch

from ....kernels.native.library import LibraryError, library_path, load_library, native_status
from ....kernels.native.stamp import read_stamp
from ....kernels.native.toolchain import BuildError, find_toolchain
from ....kernels.triton.linear import missing_for_triton


@dataclass(frozen=True)
class DeviceKernels:
    """The compiled kernels, as the parts that call them one by one need to know them.

    Args:
        status: one line, either way.
        refusal: why they cannot be used; None when they can.
        shared_limit: bytes of shared memory that a block may have.
        build_id: of the library.
    """

    status: str
    refusal: str | None
    shared_limit: int = 0
    build_id: str = ""


def device_kernels(device: torch.device) -> DeviceKernels:
    """Load the library if that has not happened; what it is on `device`."""
    status = native_status(device)
    if not status.loaded:
        return DeviceKernels(str(status), str(status))
    properties = torch.cuda.get_device_properties(device)
    build_id = read_stamp(library_path()).build_key
    return DeviceKernels(str(status), None, properties.shared_memory_per_block_optin, build_id)


@dataclass(frozen=True)
class KernelTools:
    """The compiled kernels and what compiles kernels, whether or not there is a GPU.

    Args:
        library: its file.
        built: that is there.
        archs: it holds code for; empty where it cannot be loaded.
        library_error: why it cannot; None where it can.
        triton_error: what Triton needs and is not there; None where it can compile.
        nvcc: version of the compiler of the library; None where it cannot be built, for `nvcc_error`.
    """

    library: str
    built: bool
    archs: tuple[str, ...]
    library_error: str | None
    triton_error: str | None
    nvcc: str | None
    nvcc_error: str = ""


def kernel_tools() -> KernelTools:
    """Load the library if that has not happened, which needs no device; look for what compiles."""
    path = library_path()
    archs: tuple[str, ...] = ()
    library_error = nvcc = None
    nvcc_error = ""
    try:
        archs = load_library(path).archs
    except LibraryError as error:
        library_error = str(error)
    try:
        nvcc = find_toolchain().version
    except BuildError as error:
        nvcc_error = str(error).splitlines()[0]
    return KernelTools(str(path), path.is_file(), archs, library_error, missing_for_triton(), nvcc, nvcc_error)
