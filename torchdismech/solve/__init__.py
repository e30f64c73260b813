"""Linear solvers, root searches, complementarity problems and eigenvalues of batches: algebra without physics."""
