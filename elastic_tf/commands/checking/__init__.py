"""What `doctor` checks: installation, machine, storage.

In: nothing. Out: findings, each with what to do.
"""
