"""The choice: the plan that lowers the loss most within a budget.

In: the importance of each tensor, a `TimingProfile`, `rho`. Out: a `Selection` with the plan, its
predicted time and how far any other plan could be ahead at most.
"""
