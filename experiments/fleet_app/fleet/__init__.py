"""Elastic training of handwritten digits on many devices."""
