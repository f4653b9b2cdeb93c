"""Does reinforcement learning reach what is reachable on toys? One file each, on models that a CPU trains in minutes.

    python -m benchmarks.rl ppo_toy --seed 0             # a vocabulary of 8, reward: the share of one token
    python -m benchmarks.rl rlhf --seed 0                # a reward model in place of a hidden utility
    python -m benchmarks.rl grpo_addition --seed 0       # sums of two numbers of two digits, checked by exact_match
    python -m benchmarks.rl calculator --seed 0          # a calculator over several turns
    python -m benchmarks.rl rollout_speed                # tokens a CPU-second, next to transformers' generate
    python -m benchmarks.rl identities                   # the first ratio, and advantages by brute force

Each prints one JSON line. `all` runs each as often as its bars need, and ends with 1 where a bar is missed.
"""
