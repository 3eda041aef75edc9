"""Finds out what the compiled kernels are on a device, and what can compile kernels on this machine."""

from dataclasses import dataclass

import torch

from ....kernels.native.library import library_path, native_status
from ....kernels.native.stamp import read_stamp


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
