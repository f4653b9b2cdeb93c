"""The knowledge graph: entities and relations, each with the documents that state them.

    with open_graph("file:///data/graph", settings) as graph:      # or http://host:9081
        graph.mutate([Mutation(tenant, stream, name, sha256, version, entities, relations)])

One interface (`contract.Graph`), three places: `MemoryGraph` (tests and the simulation), `LadybugGraph` (a database
file, written by a child process of its own) and `HttpGraph` (`trainyard serve --role graph`).
"""
