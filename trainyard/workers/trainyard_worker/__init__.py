"""The worker of an external trainer: its files, its events, its checkpoints, and one engine for each tool.

python -m trainyard_worker.run ENGINE FOLDER        train the job that is planned in FOLDER

run.py            one entry for every engine: ties its life to the runner's, reports an error once
files.py          what a worker reads and leaves in the folder of a job, and whole checkpoints
contract.py       names, signals and event lines that the supervised child and every worker agree on
failures.py       errors in words, for processes without the package's own error classes
names.py          the files of a plan
*_engine.py       mlx, unsloth, deepspeed (with `deepspeed_shards.py`)
axolotl_schema.py asks axolotl's schema about a configuration
standalone.py     a whole fine-tuning in one file, copied next to the rows of a `script` job
"""
