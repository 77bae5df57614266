"""What a policy is worth, told from a log: inputs, the one value formula, intervals, diagnostics."""
