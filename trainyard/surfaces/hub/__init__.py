"""The data worker: repositories over the wire of the Hugging Face Hub, for clients with `HF_ENDPOINT`."""
