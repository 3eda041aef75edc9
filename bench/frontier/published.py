"""What papers publish of such methods on ImageNet's 50,000 validation images: to be compared by the change alone."""

from typing import Any

COLUMNS = ("method", "model", "gain", "data", "top1", "dense", "source")

TOME, FQ_VIT, FLAR_SVD = "arXiv 2210.09461", "FQ-ViT, IJCAI 2022", "FLAR-SVD, CVPRW 2025"

_ROWS = (
    ("ToMe r 13", "ViT-S", "1.64x images/s, GPU", "none", 79.3, 81.4, TOME),
    ("FQ-ViT W8A8", "DeiT-T", "1/4 of the bytes", "calibration images", 71.6, 72.2, FQ_VIT),
    ("FQ-ViT W8A8", "DeiT-S", "1/4 of the bytes", "calibration images", 79.2, 79.9, FQ_VIT),
    ("FQ-ViT W8A8", "DeiT-B", "1/4 of the bytes", "calibration images", 81.2, 81.9, FQ_VIT),
    ("AdaLog W6A6", "DeiT-T", "", "32 images", 71.4, 72.2, "AdaLog, ECCV 2024"),
    ("APHQ-ViT W4A4", "DeiT-T", "", "1,024 images", 66.7, 72.2, "arXiv 2504.02508"),
    ("CORP, half of the units", "DeiT-T", "24 % fewer FLOPs", "unlabelled images", 55.4, 72.0, "arXiv 2602.05243"),
    ("FLAR-SVD", "DeiT-B", "16.8 of 33.7 GFLOPs", "4,608 images", 78.4, 81.8, FLAR_SVD),
    ("FLAR-SVD, one epoch", "DeiT-B", "16.8 of 33.7 GFLOPs", "", 81.0, 81.8, FLAR_SVD),
    ("SVD-LLM", "DeiT-B", "44 of 87 M parameters", "4,608 images", 70.4, 81.8, FLAR_SVD),
    ("ASVD", "DeiT-B", "44 of 87 M parameters", "4,608 images", 71.8, 81.8, FLAR_SVD),
)

PUBLISHED: tuple[dict[str, Any], ...] = tuple(
    dict(zip(COLUMNS, row, strict=True)) | {"change": round(row[4] - row[5], 1)} for row in _ROWS
)
"""Rows with the change of top-1 in points."""
