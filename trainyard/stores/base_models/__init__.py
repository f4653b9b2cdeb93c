"""What a base model's folder may ask for, and how one gets onto this machine."""
