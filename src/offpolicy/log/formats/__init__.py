"""Formats of other libraries, one file each: Open Bandit Pipeline's dictionaries, Vowpal Wabbit's files."""
