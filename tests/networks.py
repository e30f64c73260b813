"""A network of rods that several tests use."""

import numpy as np

# a star: nodes, and edges stored both ways
NETWORK = (
    np.array([[0, 0, 0], [0.03, 0, 0.01], [0.06, 0.01, 0], [-0.01, 0.03, 0], [0, 0.06, 0.01], [0.01, -0.03, -0.01]]),
    np.array([[1, 0], [1, 2], [0, 3], [4, 3], [5, 0]]),
)
