"""Handwritten digits on boards without TensorFlow."""
