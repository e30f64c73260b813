"""What a scene file may hold: its tables and keys, and what each may be."""
