"""The model server of one phase: started, awaited, warmed, drained, stopped, and its device proven free.

    server = InferenceServer(profile, folder, settings)
    server.start()                      # a boot command first, where there is one
    server.wait_ready()
    server.warm(SCHEMA)                 # the grammar is compiled before the clock runs
    async with server.completing(8) as complete:
        answer = await complete(messages, SCHEMA, 2_048)
    server.drain()                      # no new request; those under way end
    server.stop()                       # or vLLM's sleep, where the profile says so
    server.prove_free()                 # by measured memory; raises if the device is not free

The server runs under supervision: it dies with this process, and `stop` ends its process tree and nothing else. A
device that another program computes on is refused before anything is started. Torch-free.
"""
