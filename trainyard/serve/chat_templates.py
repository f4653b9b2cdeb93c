"""A model's chat template is a program of a stranger: it is tried in a child process with limits before it is used.

`python -m trainyard.serve.chat_templates FILE` compiles the template in jinja's immutable sandbox and renders sample
conversations, inside a limit of memory and processor time; the parent adds a limit of wall time. What passes may still
be refused later for a conversation that it does not support; it cannot reach Python's objects, the disk or the net.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jinja2

from trainyard.data.template_child import Unsupported, environment
from trainyard.errors import InvalidInput
from trainyard.inherited import child_environment
from trainyard.stores.models import chat_template, chat_template_sha256

__all__ = ["chat_template_sha256", "check_chat_template", "check_folder", "render"]

MEMORY_BYTES = 512 << 20
CPU_S = 3
WALL_S = 60.0
"""A template cannot sleep: its processor time ends it, which a busy machine may take long to give."""
MAX_TEMPLATE_CHARS = 256 << 10
MAX_RENDERED_CHARS = 64 << 10
"""A template adds some hundred characters to the samples; one that adds more is not a chat template."""
SAMPLES: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello. How can I help?"},
        {"role": "user", "content": "Tell me more."},
    ],
)


def render(text: str, messages: list[dict[str, str]], **variables: Any) -> str:
    """The conversation as the template writes it. Raises jinja's errors."""
    given = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "tools": None, **variables}
    return environment().from_string(text).render(messages=messages, **given)


def check_folder(folder: Path) -> None:
    """Check a model folder's template; a folder without one passes. Raises as `check_chat_template`."""
    text = chat_template(folder)
    if text is not None:
        check_chat_template(text)


def check_chat_template(text: str, *, seconds: float = WALL_S) -> None:
    """Try a template in a child process. Raises `InvalidInput` (`E-CHAT-TEMPLATE`) with what it did."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise refused(f"it has {len(text):,} characters; {MAX_TEMPLATE_CHARS:,} are allowed")
    with tempfile.TemporaryDirectory(prefix="trainyard-template-") as folder:
        path = Path(folder) / "chat_template.jinja"
        path.write_text(text, encoding="utf-8", errors="replace")
        command = [sys.executable, "-m", "trainyard.serve.chat_templates", str(path)]
        try:
            child = subprocess.run(
                command, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False,
                env=child_environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise refused(f"it did not finish within {seconds:g} s") from error
    if child.returncode != 0:
        lines = child.stdout.decode(errors="replace").strip().splitlines()
        raise refused(lines[-1] if lines else "it used more memory or processor time than is allowed")


def refused(why: str) -> InvalidInput:
    return InvalidInput(
        f"The chat template is refused: {why.rstrip('.')}.",
        why="A chat template is a program; it may only arrange messages.",
        do="Use the template of the model's maker, or a plain one such as ChatML.",
        code="E-CHAT-TEMPLATE",
    )


def limit_this_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def try_template(text: str) -> str | None:
    """Render every sample; returns what is wrong, or None."""
    for number, messages in enumerate(SAMPLES):
        for add_generation_prompt in (True, False):
            try:
                rendered = render(text, messages, add_generation_prompt=add_generation_prompt)
            except Unsupported as error:
                if number == 0:
                    return f"it takes no plain user message ({error})"
                continue
            except jinja2.TemplateSyntaxError as error:
                return f"it does not compile, line {error.lineno}: {error.message}"
            except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
                return f"{type(error).__name__}: {error}"
            except (MemoryError, RecursionError) as error:
                return f"it used more memory than is allowed ({type(error).__name__})"
            if len(rendered) > MAX_RENDERED_CHARS:
                return f"it turned {sum(len(m['content']) for m in messages)} characters into {len(rendered):,}"
    return None


def main(path: Path) -> int:
    """The child: prints one line and returns 1 if the template is refused."""
    text = path.read_text(encoding="utf-8")
    limit_this_process()
    wrong = try_template(text)
    if wrong is not None:
        print(" ".join(wrong.split())[:500])
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
