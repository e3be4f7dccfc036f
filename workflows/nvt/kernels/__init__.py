"""The arithmetic of the operators, shared with the plan."""
