"""Best-of-n: a reward model scores several answers to each question, and the best one stays."""
