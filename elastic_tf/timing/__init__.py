"""What training each tensor costs on this device.

In: an elastic model and one batch. Out: a `TimingProfile`, measured by the TensorFlow profiler and
by the clock, and its JSON file.
"""
