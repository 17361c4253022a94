"""What a training costs beside time: FLOPs, activation memory, energy."""
