"""Kernels for CPUs: a whole forward as one call, in int8 or bfloat16, by AMX, AVX-512 or AVX2; without torch."""
