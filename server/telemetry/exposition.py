"""The metrics as text."""

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


def exposition(registry: Collector, accept: str) -> tuple[bytes, str]:
    """A scrape's answer and its content type: Prometheus text, or OpenMetrics where it is asked for."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
