"""What measures: decoding, forward, HTTP; and what made the demo model."""
