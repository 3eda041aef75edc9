"""What stands for a dcgm-exporter: one GPU and the last error that its driver reported."""

XID = 79
"""The GPU has fallen off the bus."""


class Dcgm:
    """No error at first."""

    def __init__(self) -> None:
        self.xid = 0

    def exposition(self, _: bytes = b"") -> str:
        """The answer to a scrape."""
        return f'DCGM_FI_DEV_XID_ERRORS{{Hostname="node-1",UUID="GPU-0",gpu="0"}} {self.xid}\n'
