"""What `python -m elastic_tf` does: a dataclass of options and a `main` for each command.

Modules of commands load TensorFlow after they have read their words. The library never imports from
here.
"""
