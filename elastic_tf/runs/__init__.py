"""What a training leaves behind: a run directory, and TensorBoard's events."""
