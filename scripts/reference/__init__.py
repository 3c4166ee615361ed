"""Parts of scripts/generate_reference.py."""
