"""The flows of templates whose policies learn from rewards."""
