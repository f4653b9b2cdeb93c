"""What the GPUs of this machine do: memory, load, temperature, power, clocks and processes."""
