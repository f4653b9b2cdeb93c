"""What a run will take: rows and steps, trained parameters, memory, disk and time; arithmetic only."""
