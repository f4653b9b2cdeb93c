"""Reinforcement learning: sampled completions, their rewards, and the critic."""
