"""Command lines of the smallest runs."""

from __future__ import annotations

NETWORK = "--model digits_resnet --input-size 16 --batch-size 4 "
TRAINING = NETWORK + (
    "--method elastic_loss --weights none --learning-rate 1e-3 --epochs 2 --validation 0.25 "
    "--quiet "
)
