"""What `python -m elastic_tf` does: each command is a function, `train`, of its options, `Train`.

It loads TensorFlow after it has read its words. The library never imports from here.
"""
