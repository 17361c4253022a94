"""What to train: what tensors are worth, which ones fit, and keeping a budget in a `fit`."""
