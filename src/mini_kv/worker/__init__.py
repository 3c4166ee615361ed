"""The processes in which the reference or the candidate runs. Only here is torch imported."""
