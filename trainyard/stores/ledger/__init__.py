"""The ledger: a tamper-evident log of what was trained, on which data, where and at what price."""
