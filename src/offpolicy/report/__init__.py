"""Charts and pages from plain numbers; nothing here loads torch."""
