"""What `compare` does: `contest` plans and judges, `trials` trains in child processes."""
