"""From a file or a text to a checked value: `load_chain` reads a chain, a job or a template call, in YAML or JSON."""

from trainyard.spec.load.files import load_chain, load_value
from trainyard.spec.load.parse import parse_chain

__all__ = ["load_chain", "load_value", "parse_chain"]
