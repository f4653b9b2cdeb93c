"""What runs, evaluations and nights have left, as text."""
