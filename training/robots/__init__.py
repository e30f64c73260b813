"""The systems that are fitted: robots from scenes, rods between markers, and a network without physics."""
