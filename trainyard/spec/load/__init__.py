"""From a file or a text to a checked value: `load_chain` reads a chain, a job or a template call, in YAML or JSON."""
