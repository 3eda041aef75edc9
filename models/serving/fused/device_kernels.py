"""Finds out what the compiled kernels are on a device, and what can compile kernels on this machine."""

from dataclasses import dataclass

import torch

from ....kernels.native.library import LibraryError, library_path, load_library, native_status
from ....kernels.native.stamp import read_stamp
from ....kernels.native.toolchain import BuildError, find_toolchain
from ....kernels.triton.linear import missing_for_triton


@dataclass(frozen=True)
class DeviceKernels:
    """The state of the compiled kernels on a device.

    Args:
        status: the state in one line.
        refusal: why the kernels cannot be used; None when they can.
        shared_limit: the most bytes of shared memory a thread block.
        build_id: hash of the sources of the library.
    """

    status: str
    refusal: str | None
    shared_limit: int = 0
    build_id: str = ""


def device_kernels(device: torch.device) -> DeviceKernels:
    """Load the library if that has not happened, and describe it on `device`."""
    status = native_status(device)
    if not status.loaded:
        return DeviceKernels(str(status), str(status))
    properties = torch.cuda.get_device_properties(device)
    build_id = read_stamp(library_path()).source_hash
    return DeviceKernels(str(status), None, properties.shared_memory_per_block_optin, build_id)


@dataclass(frozen=True)
class KernelTools:
    """The library of compiled kernels and the compilers of this machine, whether or not there is a GPU.

    Args:
        library: path of the library.
        built: whether that file is there.
        archs: GPU architectures that it has code for; empty where it cannot be loaded.
        library_error: why it cannot be loaded; None where it can.
        triton_error: what Triton lacks to compile; None where it lacks nothing.
        nvcc: version of the compiler that builds the library; None where there is none.
        nvcc_error: why there is none.
    """

    library: str
    built: bool
    archs: tuple[str, ...]
    library_error: str | None
    triton_error: str | None
    nvcc: str | None
    nvcc_error: str = ""


def kernel_tools() -> KernelTools:
    """Load the library if that has not happened, which needs no device, and look for compilers."""
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
