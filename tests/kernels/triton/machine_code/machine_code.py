"""Judges the machine code of Triton and Gluon kernels for Hopper: what makes a kernel slow there without an error.

- the tensor instruction is that of the type: HGMMA (16 bits), IGMMA (int8), QGMMA (fp8);
- waits for tensor instructions are at most a quarter of them, or one for each step where a step has fewer: with more,
  ptxas has serialised them, which it only says in its log (messages C7500 to C7599);
- no loop accesses local memory, which is where registers are spilled;
- stores to global memory are 16 bytes wide;
- all threads' registers fit a multiprocessor.
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

REGISTERS = 64 * 1024
"""Those of a multiprocessor."""

EVERYWHERE = (0, 1 << 40)

KINDS = {
    "tensor": re.compile(r"[HIQ]GMMA"),
    "waits": re.compile(r"WARPGROUP\.DEPBAR"),
    "local": re.compile(r"LDL|STL"),
    "narrow stores": re.compile(r"STG(?!\S*\.128)"),
    "stores": re.compile(r"STG"),
    "loads": re.compile(r"UTMALDG"),
    "prefetches": re.compile(r"CCTL\S*\.PF2"),
    "wait for the launch before": re.compile(r"ACQBULK"),
}
SERIALISED = re.compile(r"\bC75\d\d\b.*")
TENSOR_TO_WAITS = 4


@dataclass(frozen=True)
class MachineCode:
    """A kernel's machine code.

    Args:
        instructions: address and text.
        registers: of a thread, when it is launched.
        threads: of a program.
        shared_bytes: of a program.
        log: what ptxas said.
    """

    instructions: tuple[tuple[int, str], ...]
    registers: int
    threads: int
    shared_bytes: int
    log: str

    @classmethod
    def compile(cls, source: Any, **options: Any) -> "MachineCode":
        """Compile an `ASTSource` or `GluonASTSource` for Hopper, anew."""
        import triton
        from triton.backends.compiler import GPUTarget

        said = StringIO()
        always = {"TRITON_DUMP_PTXAS_LOG": "1", "TRITON_ALWAYS_COMPILE": "1"}
        with patch.dict(os.environ, always), redirect_stdout(said):
            made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
        usage = re.search(r"REG:(\d+)", disassembly(tools, made.asm["cubin"], "-res-usage"))
        threads = re.search(r"\.(?:req|max)ntid (\d+)", made.asm["ptx"])
        assert usage is not None
        assert threads is not None
        instructions = tuple(parsed(disassembly(tools, made.asm["cubin"], "-sass")))
        return cls(instructions, int(usage[1]), int(threads[1]), made.metadata.shared, said.getvalue())

    def count(self, kind: str, span: tuple[int, int] = EVERYWHERE) -> int:
        """Return how many instructions of a kind there are between two addresses."""
        return sum(
            bool(KINDS[kind].match(text)) for address, text in self.instructions if span[0] <= address <= span[1]
        )

    def first(self, kind: str) -> int:
        """Return the address of the first instruction of a kind, or 0."""
        return next((address for address, text in self.instructions if KINDS[kind].match(text)), 0)

    def loops(self) -> list[tuple[int, int]]:
        """Return the innermost loops: first and last address."""
        spans = []
        for address, text in self.instructions:
            target = re.match(r"BRA\S* .*?0x([0-9a-f]+)", text)
            if target and int(target[1], 16) < address:
                spans.append((int(target[1], 16), address))
        return [
            span
            for span in spans
            if not any(other != span and span[0] <= other[0] and other[1] <= span[1] for other in spans)
        ]

    def tensor_instructions(self) -> Counter[str]:
        """Count the tensor instructions by shape and type: HGMMA.64x128x16.F32.BF16."""
        texts = (text for _, text in self.instructions if KINDS["tensor"].match(text))
        return Counter(text.split()[0] for text in texts)

    def faults(self, instruction: str, step: int = TENSOR_TO_WAITS) -> list[str]:
        """Return what is wrong with it.

        Args:
            instruction: regular expression of the beginning of its tensor instructions.
            step: tensor instructions of a step of a loop, which has one wait.
        """
        kinds = self.tensor_instructions()
        wrong = [name for name in kinds if not re.match(instruction, name)]
        found = (
            [f"{', '.join(wrong) or 'no tensor instruction'} instead of {instruction}"] if wrong or not kinds else []
        )
        for span in [*self.loops(), EVERYWHERE]:
            tensor, waits, local = (self.count(kind, span) for kind in ("tensor", "waits", "local"))
            loop = span != EVERYWHERE
            if (waits if loop else waits - 1) * min(step, TENSOR_TO_WAITS) > tensor:  # one more behind the last loop
                found.append(f"{waits} waits for {tensor} tensor instructions{f' in a loop at {span[0]:#x}' * loop}")
            if local and loop:
                found.append(f"{local} accesses to local memory in a loop at {span[0]:#x}")
        if narrow := self.count("narrow stores"):
            found.append(f"{narrow} of {self.count('stores')} stores are narrower than 16 bytes")
        if self.registers * self.threads > REGISTERS:
            found.append(f"{self.registers} registers of {self.threads} threads")
        return found + SERIALISED.findall(self.log)


def disassembly(tools: Path, cubin: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tools / "cuobjdump"), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def parsed(text: str) -> Iterator[tuple[int, str]]:
    """Yield address and text of each instruction, without its predicate."""
    for address, instruction in re.findall(r"^\s*/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;", text, re.MULTILINE):
        yield int(address, 16), re.sub(r"^@!?U?P\w+\s+", "", instruction)
