"""Mini Kernel Verifier: one Task Card and one candidate operator in, one evidence-backed verdict out."""

__version__ = "0.1.0"
