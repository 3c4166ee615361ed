"""Honest candidates through every check that could accuse them: how often does one cry wolf?"""
