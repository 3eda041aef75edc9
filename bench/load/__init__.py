"""An HTTP load generator: arrivals on a schedule or in a closed loop, latency from the intended start."""
