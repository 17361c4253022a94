"""What `train` does: one training into one run directory. `work` is the course of it."""
