"""Linear solvers and Newton's method for batches: vectors and matrices, no physics."""
