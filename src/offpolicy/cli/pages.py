"""`docs/commands.md`, written from the commands themselves: `python -m offpolicy.cli.pages > docs/commands.md`."""

from typing import Any

import typer

from offpolicy.cli import app

OPENING = """# Commands

Generated from the commands' own help by `python -m offpolicy.cli.pages > docs/commands.md`.

Every option can also be set in a TOML file passed with `--config`, under its long name without dashes (`reward-range`
or `reward_range`); a repeatable option takes a list, and one of NAME=VALUE pairs also a table
(`kind = {age = "numeric"}`). Options on the command line override the file (pairs name by name), and an unknown key is
an error.

Exit codes: 0 success, 1 an error that you can fix (one paragraph on standard error; `--debug`, before or after the
command, shows the traceback), 2 the verdict "run an experiment" with `--strict`. With `--json`, standard output holds
one JSON object and nothing else. Progress is shown on standard error: bars on a terminal, elsewhere plain lines with
the time left. `--quiet`, before or after the command, stops them.
"""


def command_pages() -> str:
    """The page of all commands, as Markdown."""
    group: Any = typer.main.get_command(app)
    return "\n".join([OPENING, *(_section(name, command) for name, command in group.commands.items())])


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    words = [_metavar(p) for p in arguments]
    required = [f"{p.opts[0]} {_metavar(p)}" for p in options if p.required]
    usage = " ".join(["offpolicy", name, *words, *required, "[OPTIONS]"])
    text = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    lines = [f"## offpolicy {name}", "", "```text", usage, "```", "", text, ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| `{_metavar(p)}` | {_help(p)} |" for p in arguments]
    lines += [f"| `{_flags(p)}` | {_help(p)} |" for p in options]
    return "\n".join([*lines, ""])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.strip("_").upper())


def _flags(parameter: Any) -> str:
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    return names if getattr(parameter, "is_flag", False) else f"{names} {_metavar(parameter)}"


def _help(parameter: Any) -> str:
    text = (parameter.help or "").replace("|", "\\|")
    default = parameter.default
    shown = default is not None and not isinstance(default, bool | list) and not parameter.required
    return f"{text} Default: {default}." if shown and type(default) in (int, float, str) else text


if __name__ == "__main__":
    print(command_pages(), end="")
