"""The schema of scene files, as pydantic models: their tables and keys, and what each key may be."""
