"""Object stores: a folder or a bucket under one contract (`store.py`)."""
