"""The service as an operating system's process: ports, signals and the exit code."""
