"""What the compiled kernels are on a device: there or not and why, and how much shared memory a block may have."""

from dataclasses import dataclass

import torch

from ...kernels.native.library import library_path, native_status
from ...kernels.native.stamp import read_stamp


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
