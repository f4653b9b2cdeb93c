"""Reasoning in latent space: techniques of stage sft, one file each; their facts are in `spec/axes/latent`."""
