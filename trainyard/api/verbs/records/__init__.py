"""What runs, evaluations and nights have left, for people who look at it."""
