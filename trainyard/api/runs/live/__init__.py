"""What keeps the index of jobs: the synchroniser asks Prefect."""
