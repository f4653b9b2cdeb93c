"""One self-contained page about a run: its data, tokens, what it replaced, how much better it is, and its cost."""
