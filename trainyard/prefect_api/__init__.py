"""The only client of Prefect's server: states in Trainyard's words, the server's objects, runs, and their control.

Prefect's database is the truth about runs, schedules and slots; this package only translates. Importing it imports
Prefect (seconds), so it is imported by flows and nodes, and by operations only through `app.runs.connect_runs`.
"""
