"""What can be done with a finished `train`: commands, and `network` that they all begin with."""
