"""offpolicy."""
