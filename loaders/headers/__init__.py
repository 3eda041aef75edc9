"""Header readers, one file for each format: they decode nothing, and their work is bounded whatever the bytes are."""
