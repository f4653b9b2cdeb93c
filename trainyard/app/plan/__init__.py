"""What a plan asks of the machine: the time of trainings, the queue for the device, and the method that fits."""
