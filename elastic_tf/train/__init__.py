"""How a step is trained: the step under a plan, what it is fed, the head, optimizers, backups."""
