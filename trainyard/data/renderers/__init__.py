"""Renderers: a conversation as token ids, with what is learned marked, and back from ids to a message.

`RENDERERS` is the table; this package imports neither torch nor transformers, so that a name can be checked at once.
`rendering.Renderer` joins a row with a tokenizer. `choice.choose` turns the setting `template` into a template.

To add a renderer: a file with a `RendererSpec` here, a line in `RENDERERS`, and its template is covered by the parity
tests, which go over the table. Whether turns extend one another is measured, so a wrong flag in a row fails at once.
"""

from __future__ import annotations

from trainyard.data.renderers.chatml import CHATML, QWEN25
from trainyard.data.renderers.cohere import COHERE
from trainyard.data.renderers.contract import DEFAULT, RendererSpec
from trainyard.data.renderers.deepseek import DEEPSEEK_R1, DEEPSEEK_V3
from trainyard.data.renderers.gemma import GEMMA, GEMMA3, GEMMA4
from trainyard.data.renderers.glm import GLM4
from trainyard.data.renderers.gptoss import GPT_OSS
from trainyard.data.renderers.lfm import LFM2, LFM25
from trainyard.data.renderers.llama import LLAMA3, LLAMA31
from trainyard.data.renderers.mistral import MISTRAL
from trainyard.data.renderers.nemotron import NEMOTRON3
from trainyard.data.renderers.olmo import OLMO3
from trainyard.data.renderers.phi import PHI3
from trainyard.data.renderers.qwen import QWEN3, QWEN3_INSTRUCT, QWEN3_KEEP, QWEN35, QWEN35_KEEP
from trainyard.data.renderers.role_colon import ROLE_COLON

__all__ = ["DEFAULT", "RENDERERS", "RendererSpec"]

RENDERERS: dict[str, RendererSpec] = {
    spec.name: spec
    for spec in (
        CHATML, COHERE, DEEPSEEK_R1, DEEPSEEK_V3, GEMMA, GEMMA3, GEMMA4, GLM4, GPT_OSS, LFM2, LFM25, LLAMA3, LLAMA31,
        MISTRAL, NEMOTRON3, OLMO3, PHI3, QWEN25, QWEN3, QWEN3_INSTRUCT, QWEN3_KEEP, QWEN35, QWEN35_KEEP, ROLE_COLON,
    )
}  # fmt: skip
