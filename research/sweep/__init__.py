"""How kernel time grows with size: each operator's best candidate and its reference, and a picture."""
