"""What measures: decoding, forward, HTTP."""
