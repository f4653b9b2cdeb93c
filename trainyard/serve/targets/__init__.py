"""Deploy targets of adapter versions: one row per kind of server, each the same six functions.

    check   what speaks against it, before anything is touched      load     bring the version in, next to the live one
    canary  it has to answer a prompt                               switch   let the alias mean it
    undo    take back whatever of this was done                     retire   drop the version that was live before

Every function takes the `TargetDeployment`: target, version and what has been done there so far. A version is always
loaded under its own name, which is never used again, so no server can answer from another version's prefix cache.

    table.py      the rows, and the registry's pointer      llama_server.py  llama.cpp's server, started here
    vllm.py       adapters while the server runs            mlx.py           mlx-lm's server, started here
    embedded.py   the same, and aliases                     ollama.py        a model made of base and adapter
    canary.py     the prompt that a version has to answer   local.py         servers that a deployment starts
"""
