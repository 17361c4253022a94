"""Going on after an interruption as if nothing had happened.

In: the state of a `fit`. Out: two files of which one is always whole, and the state put back.
"""
