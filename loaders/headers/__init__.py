"""Header readers: one file a format, no decoding, bounded work whatever the bytes are."""
