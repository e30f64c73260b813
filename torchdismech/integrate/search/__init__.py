"""Searches for the root of a step beside Newton's method with a line search, and the order in which they are tried."""
