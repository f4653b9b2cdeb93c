"""Reasoning without words: techniques that let a model compute before it answers, one file each and one table.

A technique is a module with its own weights, which reads prompts (`contract.LatentModule`), and a form of stage sft
(`contract.LatentSpec.stage`). To add one: a row in `spec/axes/latent.py` with the model of its settings, a file here, a
row in `table.py`, a test.
"""
