"""Keeping the budget during one `fit`.

In: a traced forward pass, measured steps, `rho` or a deadline. Out: what steps will take, when to
select, for which `rho`, and when to stop; `course` is the whole training of `finetune`.
"""
