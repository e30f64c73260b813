"""A robot without forces: its topology, materials, states, coordinates and inertia."""
