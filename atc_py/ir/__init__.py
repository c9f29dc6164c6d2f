"""The graph engine's intermediate representation (GE IR)."""
