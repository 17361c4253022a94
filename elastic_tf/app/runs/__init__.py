"""What a training leaves behind: a run directory."""
