"""The renderers by name."""

from __future__ import annotations

from trainyard.data.renderers.chatml import CHATML, QWEN25
from trainyard.data.renderers.cohere import COHERE
from trainyard.data.renderers.contract import RendererSpec
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

RENDERERS: dict[str, RendererSpec] = {
    spec.name: spec
    for spec in (
        CHATML, COHERE, DEEPSEEK_R1, DEEPSEEK_V3, GEMMA, GEMMA3, GEMMA4, GLM4, GPT_OSS, LFM2, LFM25, LLAMA3, LLAMA31,
        MISTRAL, NEMOTRON3, OLMO3, PHI3, QWEN25, QWEN3, QWEN3_INSTRUCT, QWEN3_KEEP, QWEN35, QWEN35_KEEP, ROLE_COLON,
    )
}  # fmt: skip
