"""Cloud providers: rows are uploaded, the provider trains, and its weights or the name of its model come back.

backend.py      the parent's half: whether the client and the key are here
program.py      the supervised child: rows, submission, result
submission.py   one remote job for each run key, followed to its end, whatever is lost between
contract.py     what each provider's file fulfils
together.py …   one file for each provider, by its official client
"""
