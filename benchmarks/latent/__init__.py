"""Learning gates of the latent techniques: does each learn what it promises, with fixed seeds on small models?"""
