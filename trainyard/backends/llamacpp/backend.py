"""The `llamacpp` backend, seen from the parent: continued training of whole weights by llama.cpp's `llama-finetune`.

The program is an example of llama.cpp's and calls itself a work in progress. It reads plain text, moves every weight
but the token embeddings in float32, and has neither LoRA nor masks nor checkpoints. What surrounds it here: the text is
made from the rows, the base becomes a GGUF file, each epoch is one run of the program (so that an epoch is a
checkpoint), and what it leaves becomes a model of transformers again. Imports no torch.
"""

from __future__ import annotations

from trainyard.backends import environments
from trainyard.backends.base import Probe
from trainyard.backends.llamacpp.build import FOLDER, PROGRAMS, read_own_version
from trainyard.backends.programs import ExternalProgram
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName


class LlamacppProgram(ExternalProgram):
    """The environment, and the programs that were built into it."""

    def probe(self, settings: Settings | None = None) -> Probe:
        """The version is llama.cpp's, not its package's."""
        probe_result = super().probe(settings)
        if not probe_result.available:
            return probe_result
        tools = environments.find_folder(self.name, settings) / FOLDER
        missing = [name for name in PROGRAMS if not (tools / "bin" / name).is_file()]
        if missing:
            why, fix = f"{tools / 'bin'} has no {missing[0]}.", environments.repair_hint(self.name, settings)
            return Probe(False, version=probe_result.version, why=why, fix=fix)
        return Probe(True, version=read_own_version(tools))


BACKEND = LlamacppProgram(BackendName.LLAMACPP)
