"""Gradients of steps, by the implicit function theorem."""
