"""How the root of a step is searched for, where Newton's method with a line search is not enough."""
