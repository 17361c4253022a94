"""What `profile` does: measure a model on this device, and search the fastest settings.

In: options. Out: a profile's file, and text about it.
"""
