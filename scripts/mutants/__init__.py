"""Mutations of the code that decides verdicts: whether the unit tests notice each (``make mutants``)."""
