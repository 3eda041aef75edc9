"""Builds the CPU kernels into a wheel, where they can be built; a wheel without them is for every machine."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kernels.cpu.build import build
from kernels.cpu.instruction_sets import LIBRARY, CpuLibraryError


class Wheel(bdist_wheel):
    """A wheel for every Python: the kernels are no extension module, but a library that ctypes loads."""

    def run(self) -> None:
        try:
            build()
        except CpuLibraryError as error:
            LIBRARY.unlink(missing_ok=True)  # of other sources, if it is there
            print(f"a wheel without CPU kernels: {error}", file=sys.stderr)
        self.root_is_pure = not any(LIBRARY.parent.glob("*.so"))
        self.distribution.has_ext_modules = lambda: not self.root_is_pure
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"bdist_wheel": Wheel})
