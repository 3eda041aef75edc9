"""What the service tells of itself: metrics, logs, traces, and what is known of one request."""
