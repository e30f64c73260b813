"""Gradients of steps, by the implicit function theorem.

`gradient.py` has the formulas, and the step as a node of autograd. What a node keeps is in `recipe.py`; its backward
pass refuses what cannot be differentiated (`refusals.py`, `hooks.py`), solves the adjoint equations at the root
(`adjoint.py`; with contacts that are constraints, `kkt.py`) and sums the gradients of the batch's chunks (`sums.py`).
Many recorded steps are one node: `course.py` forward, `course_backward.py` back. `checkpoints.py` handles steps within
`torch.utils.checkpoint`.
"""
