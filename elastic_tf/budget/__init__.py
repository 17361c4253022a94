"""Keeping the budget during one `fit`.

In: measured steps, `rho` or a deadline. Out: when to select, for which `rho`, and when to stop.
"""
