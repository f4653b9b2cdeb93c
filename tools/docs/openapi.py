"""Write the OpenAPI document of the REST API, for the dashboard's types: `python -m tools.docs.openapi FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from trainyard.surfaces.rest.openapi import openapi_document

if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(orjson.dumps(openapi_document(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
