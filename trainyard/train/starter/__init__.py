"""The starter model: a small Llama that comes with Trainyard, so that no hub, no account and no GPU is needed.

recipe.py    everything that decides the weights, the corpus excepted
corpus.py    what it reads: docstrings of the pinned packages
build.py     trains it again, in a child process (`python -m trainyard.train.starter FOLDER`)
pretrain.py  the child's program
model/       the weights that are shipped, with their card
"""
