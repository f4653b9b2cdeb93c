"""The checks between raw rows and training rows: one module a family, every step with the same signature.

    blocks            one Arrow batch and the texts that the steps read; the ledger of dropped rows and reasons
    sieve             state of the steps from row to row
    words             texts as arrays of word hashes: the common ground of near-duplicates, grounding, decontamination
    sensitive         personal data and secrets: counted, masked or quarantined
    detectors, phones where they occur in a text
    filters           format, JSON Schema and quality rules
    lengths           the length policy, in tokens
    duplicates        exact and near-duplicates
    grounding         how much of an answer occurs in its source document
    decontamination   what training shares with held-out rows and evaluation sets

`trainyard.data.validation` runs them in order and counts the rows of each step.
"""
