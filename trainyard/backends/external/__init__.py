"""Execution of a job by a trainer with an interpreter of its own: a plan, the tool, the result.

    runner.py   the supervised child, in our interpreter, without torch: contract, device lock, checkpoints, record
    plan.py        a short process in our interpreter: token ids, the rows of every step, the shape of the adapter
    the tool       in its own interpreter, started by the runner through the tool's own launcher

The tool learns the same tokens, in the same order, with the same adapter shape as the native engine would: what differs
between two backends is how they compute, never what they are given. What a tool made is checked, completed with a
`training.json` and returned by the runner.

    folder/plan/    plan.json  steps.jsonl  adapter/adapter_config.json  tokenizer/     what the tool reads
    folder/made/    report.json and the weights                                         what it leaves
    folder/checkpoints/step-…/                                                          what it resumes from
"""
