"""What a robot is: its parts, materials, states, coordinates and inertia."""
