"""Training on the device, in LiteRT alone: what `et.export.litert` writes beside its file.

In: an exported folder and images. Out: its weights, adapted, kept on the disk. No module here
imports anything but NumPy, Pillow and ai-edge-litert: they run where TensorFlow is not.
"""
