"""The optimisation of a fit: the training loop and its steps, checkpoints and resumed runs, error bars."""
