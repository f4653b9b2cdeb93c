"""From a row to a batch: tokens, lengths, packing, shared prompts, and the plan of steps."""
