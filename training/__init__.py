"""Fitting models to recordings of real robots: data, losses and the loop."""
