"""The starter model: a small Llama that comes with Trainyard, so that no hub, no account and no GPU is needed.

corpus.py    what it reads: docstrings of the pinned packages; and the recipe, which decides everything else
build.py     trains it again, in a child process (`python -m trainyard.train.starter.pretrain FOLDER`)
pretrain.py  the child's program, and the model card that it writes
model/       the weights that are shipped, with their card
"""
