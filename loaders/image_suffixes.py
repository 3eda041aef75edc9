"""Files that are images by name."""

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".dib", ".tif", ".tiff")
) | {".ppm", ".pgm", ".pbm", ".pnm"}
"""Others in a folder are passed over, and counted where that tells something."""
