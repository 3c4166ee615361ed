"""The cage that a candidate's process enters before its library is opened.

``entry`` runs inside (or on the way in) and imports next to nothing; ``policy`` and ``probe`` are the
judge's side. Nothing is re-exported here, so that entering costs only what it uses.
"""
