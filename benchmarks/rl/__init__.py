"""What reinforcement learning reaches on toys whose best value is known."""
