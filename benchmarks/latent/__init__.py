"""Do the techniques of latent reasoning learn what they claim to? One file each, on tasks that a CPU trains in minutes.

    python -m benchmarks.latent pointers --seed 0        # COCONUT, CODI and their controls on pointer chasing
    python -m benchmarks.latent multiplication --seed 0  # stepwise internalisation
    python -m benchmarks.latent graphs --seed 0          # ProsQA-like reachability

Each prints one JSON line: accuracies, tokens and seconds. Accuracies are comparable between machines, seconds are not.
"""
