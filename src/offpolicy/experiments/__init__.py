"""What can be rerun: the demonstration, and every table and figure of the paper."""
