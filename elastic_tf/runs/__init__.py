"""The directory of one run: settings, epochs, selections and result, readable at any moment.

In: what a training says of itself. Out: JSON files and TensorBoard events.
"""
