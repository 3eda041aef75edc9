"""Leaves this process the few system calls that a decoder makes, by a seccomp filter; the kernel refuses all others.

A list of what is allowed holds for calls that no kernel has yet; whatever a C library tries beside it gets EPERM, as in
a container that forbids it, and does without. The calls are those of decoders of one thread over what is open already.
"""

import ctypes
import os
import platform
import struct

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Each call's number on x86-64 and on ARM64.
_ALLOWED = """read 0 63, pread64 17 67, write 1 64, munmap 11 215, brk 12 214, mremap 25 216, madvise 28 233,
    futex 202 98, clock_gettime 228 113, setitimer 38 103, rt_sigaction 13 134, rt_sigprocmask 14 135,
    rt_sigreturn 15 139, restart_syscall 219 128, sched_yield 24 124, getrandom 318 278, getpid 39 172,
    gettid 186 178, close 3 57, exit 60 93, exit_group 231 94"""
_NOT_EXECUTABLE, _OF_ITSELF = "mmap 9 222, mprotect 10 226", "prlimit64 302 261"

# Classic BPF over `struct seccomp_data`: the call's number, the architecture, then, from byte 16 on, six arguments of
# 8 bytes, of which the lower halves come first on both architectures.
_LOAD, _IF_EQUAL, _IF_BITS, _RETURN, _PROT_EXEC = 0x20, 0x15, 0x45, 0x06, 4
_ALLOW, _KILL, _EPERM = ((_RETURN, 0, 0, action) for action in (0x7FFF0000, 0x80000000, 0x00050001))


def filter_system_calls() -> None:
    """Give up all privileges, then all system calls but those above; of this thread, and for good.

    Raises:
        OSError: the kernel takes no filter, or the calls of its architecture are not known here.
    """
    steps = _program(platform.machine())
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    filter_ = struct.pack("@HP", len(steps), ctypes.addressof(program))
    libc, nothing = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong(0)
    if (
        libc.capset(struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0), bytes(24))
        or libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing)
        or libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), filter_, nothing, nothing)
    ):
        raise OSError(ctypes.get_errno(), f"no filter of system calls: {os.strerror(ctypes.get_errno())}")


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """Make the filter's instructions: code, steps to skip if true, steps to skip if false, operand."""
    if machine not in _AUDIT_ARCH:
        raise OSError(f"no filter of system calls for {machine}: expected {' or '.join(_AUDIT_ARCH)}")
    place = 1 + list(_AUDIT_ARCH).index(machine)
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _KILL, (_LOAD, 0, 0, 0)]
    for calls, answer in (
        (_ALLOWED, [_ALLOW]),
        (_NOT_EXECUTABLE, [(_LOAD, 0, 0, 16 + 8 * 2), (_IF_BITS, 0, 1, _PROT_EXEC), _EPERM, _ALLOW]),
        (_OF_ITSELF, [(_LOAD, 0, 0, 16), (_IF_EQUAL, 0, 1, 0), _ALLOW, _EPERM]),
    ):
        for call in calls.split(","):
            steps += [(_IF_EQUAL, 0, len(answer), int(call.split()[place])), *answer]
    return [*steps, _EPERM]
