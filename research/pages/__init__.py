"""The blocks of pages, and the pictures, that are written from the evidence."""
