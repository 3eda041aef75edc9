"""A CUDA driver that is none: it has the functions that Triton calls, does nothing, and counts launches."""

import re
import subprocess
from pathlib import Path

PROGRAM = """
import ctypes, sys
from pathlib import Path
from milkweed.kernels.triton import driver_module
driver_module.DRIVER_MODULE = Path(sys.argv[1] if sys.argv[1:] else driver_module.DRIVER_MODULE)
sys.modules["torch"] = None  # Triton would ask it for a GPU
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def double(x, y, ROWS: tl.constexpr):
    at = tl.arange(0, ROWS)
    tl.store(y + at, 2 * tl.load(x + at))

source = ASTSource(double, {"x": "*fp32", "y": "*fp32", "ROWS": "constexpr"}, {"ROWS": 64})
for _ in range(2):  # compiled, then from the cache
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    made[(3, 1, 1)](4096, 8192, 64)
print(triton.runtime.driver.active.utils.load_binary.__module__, ctypes.CDLL("libcuda.so.1").launches())
"""

_FUNCTIONS = """
static int count;
int launches(void) { return count; }
int cuLaunchKernelEx(void) { return count++, 0; }
int cuDeviceGetCount(int *found) { return *found = 1, 0; }
int cuDeviceGetAttribute(int *value) { return *value = 1024, 0; }
int cuFuncGetAttribute(int *value) { return *value = 1024, 0; }
"""


def build_empty_driver(folder: Path, module: Path) -> Path:
    """Compile libcuda.so.1 into the folder, with all that Triton's driver module needs, and return the folder."""
    symbols = subprocess.run(["nm", "-D", module], capture_output=True, text=True, check=True).stdout
    needed = {*re.findall(r" U (cu\w+)", symbols), "cuInit"} - set(re.findall(r"int (cu\w+)", _FUNCTIONS))
    source = _FUNCTIONS + "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(needed))
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", folder / "libcuda.so.1"]
    subprocess.run(command, input=source, text=True, check=True)
    return folder
