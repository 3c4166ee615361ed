"""The error study of the regression gate: measure fresh processes, assemble decisions, count errors."""
