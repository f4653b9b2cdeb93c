"""The command line: a loop over the operations of `operations/table.py`, one command each.

The request of an operation is imported when its options are needed, its implementation when it runs; the rest of this
product is not imported here. stdout is data, stderr is progress; `--json` prints the operation's result as
one JSON document. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 invalid or corrupt data, 6 limit,
7 backend unavailable, 8 not allowed.
"""

from __future__ import annotations

import codecs
import gc
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem, get_completion_class

import trainyard
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.fields import Argument, FieldError, Option
from trainyard.operations.table import OPERATIONS, read_summaries
from trainyard.operations.tables import print_error
from trainyard.operations.words import WORDS, words_by_group
from trainyard.proxies import exempt_loopback

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PROGRAM = "trainyard"
COMPLETE_VARIABLE = "_TRAINYARD_COMPLETE"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
JSON_OPTION = "as_json"
HELP_GROUP = "Help"


# Fields of a request as parameters of a command


class Place(click.Argument):
    """A positional argument; brackets show that it is optional, its default is next to its help."""

    def make_metavar(self, ctx: click.Context) -> str:
        name = f"{self.metavar}..." if self.nargs == -1 else str(self.metavar)
        return name if self.required else f"[{name}]"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        default = f"[default: {self.default}]" if isinstance(self.default, str) else ""
        parts = [self.help or "", "[required]" if self.required else default]
        choices = list(self.type.choices) if isinstance(self.type, click.Choice) else []
        name = f"{self.metavar} <{'|'.join(choices)}>" if len(choices) > 1 else str(self.metavar)
        return name, "  ".join(word for word in parts if word)


def build_parameters(name: str) -> Iterator[click.Parameter]:
    """Return the parameters of an operation: the fields of its request, then `--json`."""
    for field_name, field in OPERATIONS[name].request.model_fields.items():
        yield parameter(field_name, field)
    yield click.Option(["--json", JSON_OPTION], is_flag=True, help="Print one JSON document on stdout.")


def parameter(name: str, field: FieldInfo) -> click.Parameter:
    """Return a field of a request as its declaration has it; the value is checked by the request itself."""
    declared = next((marker for marker in field.metadata if isinstance(marker, Argument | Option)), Option())
    kind, repeated = unwrap_type(field.annotation)
    shared: JsonObject = {"help": field.description}
    if isinstance(field.default, bool | int | str) and field.default != "":
        shared["default"] = field.default
    if isinstance(declared, Argument):
        attributes: JsonObject = {
            "metavar": declared.metavar,
            "required": field.is_required(),
            "nargs": -1 if repeated else 1,
        }
        return Place([name], type=choose_type(kind, declared), **attributes, **shared)
    names = [*(declared.names or [f"--{name.replace('_', '-')}"]), name]
    if kind is bool:
        return click.Option(names, is_flag=True, show_default=True, **shared)
    if kind is dict:
        return click.Option(
            names, multiple=True, metavar="KEY=VALUE", callback=lambda *callback: parse_pairs(callback[2]), **shared
        )
    shared |= {"metavar": f"<{name_type(kind)}>", "required": field.is_required(), "multiple": repeated}
    return click.Option(names, type=choose_type(kind, declared), show_default=True, **shared)


def unwrap_type(annotation: object) -> tuple[object, bool]:
    """Return the type of one value, and whether there may be more than one: `tuple[Stage, ...]` is (Stage, True)."""
    parts = [arg for arg in get_args(annotation) if arg not in (type(None), ...)]
    origin = get_origin(annotation)
    if origin is tuple:
        return word_kind(parts[0]), True
    if origin in (Literal, dict):
        return (dict if origin is dict else annotation), False
    return (strip_annotations(parts[0]) if parts else annotation), False


def strip_annotations(kind: Any) -> Any:
    """Return a type without its `Annotated` metadata: `Base64Bytes` is bytes."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def word_kind(kind: object) -> object:
    """Of a union with a mapping, which only programs give, the type of a word."""
    members = get_args(kind) if isinstance(kind, UnionType) else ()
    return members[0] if any(get_origin(member) is dict for member in members) else kind


def list_values(kind: Any) -> list[str]:
    """Return the values that a field accepts; empty if it accepts any."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, UnionType):
        return [word for arg in get_args(kind) for word in list_values(arg)]
    return [str(member.value) for member in kind] if issubclass(kind, Enum) else []


def choose_type(kind: Any, declared: Argument | Option) -> click.ParamType[Any]:
    """Return what a shell completes: words, paths, names that are known on this machine, or nothing."""
    is_file = kind is Path or (isinstance(declared, Argument) and declared.is_file)
    if values := list_values(kind):
        return click.Choice(values)
    if declared.completes:
        return KnownName(declared.completes, is_file)
    return click.Path() if is_file else click.STRING


class KnownName(click.ParamType[str]):
    """A text whose values are looked up when a shell completes it; any other text is accepted, too."""

    name = "text"

    def __init__(self, kind: str, is_file: bool) -> None:
        self.kind, self.is_file = kind, is_file

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        args = [*ctx.args, *(param for param in ctx.params.values() if isinstance(param, str))]
        from trainyard.app.completion import list_names  # only shells that complete need it

        names = list_names(self.kind, args)
        candidates = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [*candidates, CompletionItem(incomplete, type="file")] if self.is_file else candidates


def name_type(kind: Any) -> str:
    return "|".join(list_values(kind)) or str(kind.__name__).lower()


def parse_pairs(pairs: Iterable[str]) -> JsonObject:
    """`key=value` pairs as nested parameters: a value is JSON if it reads as JSON, else text; dots nest.

    Raises `InvalidInput` (`E-PARAMETER`) for a pair without `=`, or a key that is given both as a value and a group.
    """
    nested: JsonObject = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not all(key.split(".")):
            raise InvalidInput(f"{pair!r} is not a parameter.", do="Write -p key=value.", code="E-PARAMETER")
        *groups, last = key.split(".")
        target = nested
        for group in groups:
            target = target.setdefault(group, {})
            if not isinstance(target, dict):
                raise InvalidInput(f"{key!r} reaches inside a value.", do="Give one or the other.", code="E-PARAMETER")
        target[last] = parse_value(text)
    return nested


def parse_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


# Operations as commands


class OperationCommand(click.Command):
    """An operation. Its request is imported when its parameters are first looked at."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation.rsplit(maxsplit=1)[-1], help=build_help(operation), callback=run_command)
        self.operation = operation

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        self.params = self.params or [*build_parameters(self.operation)]
        return super().get_params(ctx)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [param.get_help_record(ctx) for param in self.get_params(ctx) if isinstance(param, Place)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)


class OperationGroup(click.Group):
    """The operations whose names begin with the same word; a word can be an operation itself (`backends`)."""

    def __init__(self, word: str = "") -> None:
        is_operation = word in OPERATIONS
        help_text = (
            build_help(word)
            if is_operation
            else WORDS[word].line
            if word
            else "LLM fine-tuning as typed chains on Prefect."
        )
        super().__init__(
            word or None,
            help=help_text,
            invoke_without_command=is_operation,
            callback=run_command if is_operation else None,
        )
        self.operation = word

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self.operation in OPERATIONS:
            self.params = self.params or [*build_parameters(self.operation)]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the first word as a command where there is one of that name, else as an argument of the word itself."""
        if args and args[0] in self.list_commands(ctx):
            self.params = [param for param in self.get_params(ctx) if not isinstance(param, Place)]
        elif any(isinstance(param, Place) for param in self.get_params(ctx)):
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table, at the top in the order of the help; then those of this
        file.
        """
        if self.operation:
            return [name.split()[1] for name in OPERATIONS if name.startswith(f"{self.operation} ")]
        return [*WORDS, *self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, at the top in groups, with texts that are whole."""
        if self.operation:
            prefix = f"{self.operation} "
            rows = [(name.split()[1], line) for name, line in read_summaries().items() if name.startswith(prefix)]
            groups: dict[str, dict[str, str]] = {"Commands": dict(rows)}
        else:
            commands = {name: str(command.help) for name, command in self.commands.items()}
            groups = {**words_by_group(), HELP_GROUP: commands}
        width = max(len(name) for lines in groups.values() for name in lines)
        for heading, lines in groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in self.list_commands(ctx):
            return None
        name = f"{self.operation} {cmd_name}".strip()
        is_group = any(operation.startswith(f"{name} ") for operation in OPERATIONS)
        return OperationGroup(name) if is_group else OperationCommand(name)


def build_help(operation: str) -> str:
    row = OPERATIONS[operation]
    return f"{row.summary} Use: {row.example}" if row.example else row.summary


@click.pass_context
def run_command(ctx: click.Context, **settings: Any) -> None:
    """Run the operation of a command; errors become one message and an exit code in `main`."""
    if ctx.invoked_subcommand is not None:
        return
    assert isinstance(ctx.command, OperationCommand | OperationGroup)
    as_json, name = settings.pop(JSON_OPTION), ctx.command.operation
    fields = {key: value for key, value in settings.items() if value not in (None, ())}
    try:
        from trainyard.surfaces.cli.command import perform  # only a command that runs an operation needs it

        ctx.exit(perform(name, fields, as_json=as_json))
    except FieldError as error:
        wrong = next(param for param in ctx.command.params if param.name == error.field)
        raise click.BadParameter(error.message, ctx, wrong) from error
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


# The root and its own options


def show_completion() -> None:
    from trainyard.app.completion import find_shell  # only shells that complete need it

    print(completion_script(find_shell()))


def install_completion() -> None:
    from trainyard.app.completion import find_shell, install  # only shells that complete need it

    shell = find_shell()
    path = install(PROGRAM, shell, completion_script(shell))
    print(f"{shell} completion installed in {path}\nCompletion will take effect once you restart the terminal")


def completion_script(shell: str) -> str:
    """Return the shell's script for completion. Raises `InvalidInput` (`E-PARAMETER`) for an unknown shell."""
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise InvalidInput(f"Shell {shell} is not supported.", do="Use bash, zsh or fish.", code="E-PARAMETER")
    return shell_class(app, {}, PROGRAM, COMPLETE_VARIABLE).source()


def eager(name: str, do: Callable[[], None], help_text: str) -> click.Option:
    """Return an option of the root that does something and ends the command."""

    def callback(ctx: click.Context, _param: click.Parameter, is_set: bool) -> None:
        if is_set and not ctx.resilient_parsing:
            do()
            ctx.exit()

    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, callback=callback, help=help_text)


app = OperationGroup()
app.params = [
    eager("--version", lambda: print(trainyard.__version__), "Print the version."),
    eager("--install-completion", install_completion, "Install completion for the current shell."),
    eager("--show-completion", show_completion, "Print completion for the current shell."),
]


@app.command("help", help="Explain a command, or print a page of the manual.")
@click.argument("topic", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, topic: tuple[str, ...]) -> None:
    """Print the help of a command, or else the page of the manual of that name."""
    root = ctx.find_root()
    command, context = find_command(root, topic)
    if command is None:
        from trainyard.surfaces.cli.manual import page_text  # only `trainyard help` needs it

        page = page_text(" ".join(topic))
        click.echo_via_pager(page)  # a pipe gets the page as it is
        return
    print(command.get_help(context))
    if topic:
        guide = WORDS[topic[0]].guide if topic[0] in WORDS else "cli"
        from trainyard.surfaces.cli.manual import page_place  # only `trainyard help` needs it

        print(f"\nGuide: {page_place(guide)}")


def find_command(root: click.Context, arguments: Iterable[str]) -> tuple[click.Command | None, click.Context]:
    """Return the command of some words with a context of its own, or None."""
    command: click.Command | None = root.command
    context = root
    for word in arguments:
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            return None, root
        context = click.Context(command, parent=context, info_name=word)
    return command, context


@app.command("completion", help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
def print_completion(shell: str | None) -> None:
    """Print the script of a shell, by default of the one that runs."""
    from trainyard.app.completion import find_shell  # only shells that complete need it

    print(completion_script(shell or find_shell()))


def shed_secrets() -> None:
    """Execute the same command without the shell's secrets: the environment of a running process can be read."""
    is_api = not {"graph", "model", "--role=graph", "--role=model"} & set(sys.argv)
    from trainyard.inherited import server_environment  # only services need it

    environment = server_environment(speaks_with_prefect=is_api)
    if set(os.environ) - set(environment):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def escape_for_json(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by escapes, which JSON reads back and people recognise."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(json.dumps(char)[1:-1] for char in error.object[error.start : error.end]), error.end


def print_any_character() -> None:
    """Let stdout and stderr take every text, whatever the encoding of the terminal or of PYTHONIOENCODING."""
    codecs.register_error("json_escape", escape_for_json)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="json_escape")


def main() -> None:
    """Run the `trainyard` command. A user sees a message and an exit code, never a traceback.

    The garbage collector is off until everything is imported (`perform` switches it on), and does not run again at
    the end: both together save a quarter of the time of `trainyard check`.
    """
    gc.disable()
    exempt_loopback()
    print_any_character()
    try:
        if sys.argv[1:2] == ["serve"]:
            shed_secrets()
        app()
    except TrainyardError as error:
        print_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get("TRAINYARD_DEBUG"):
            traceback.print_exc()
        print(f"E-BUG: {type(error).__name__}: {error}\nSet TRAINYARD_DEBUG=1 for the traceback.", file=sys.stderr)
        sys.exit(1)
    finally:
        gc.freeze()
