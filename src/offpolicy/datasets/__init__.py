"""Data sets: synthetic worlds whose truth is known, and loaders for the field's public files."""
