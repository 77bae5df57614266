"""Configuration files, which hold any options of a command."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offpolicy.errors import ParameterError

NOT_IN_FILES = ("config", "help")


def config_values(path: Path, parameters: Iterable[Any], command: str) -> dict[str, Any]:
    """The options in a TOML file by the name of their parameter; a key that names none is an error."""
    try:
        document = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ParameterError(f"--config: {path} cannot be read: {reason}. Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParameterError(f"--config: {path} is not valid TOML: {error}. Fix the file.") from None
    known = {_key(parameter): parameter for parameter in parameters if parameter.name not in NOT_IN_FILES}
    values: dict[str, Any] = {}
    for key, value in document.items():
        parameter = known.get(key.replace("-", "_"))
        if parameter is None:
            raise ParameterError(
                f"--config: {path} sets {key!r}, which is not an option of {command}. Its options are: "
                f"{', '.join(known)}."
            )
        if parameter.name in values:
            raise ParameterError(f"--config: {path} sets {key!r} twice, with a dash and with an underscore.")
        values[parameter.name] = _checked(path, key, value, parameter)
    return values


def _key(parameter: Any) -> str:
    long = [name for name in parameter.opts if name.startswith("--")]
    return (long[0] if long else str(parameter.name)).lstrip("-").replace("-", "_").lower()


def _checked(path: Path, key: str, value: Any, parameter: Any) -> Any:
    """A value of the file as the command line would have given it."""
    if getattr(parameter, "multiple", False):
        if isinstance(value, dict):
            return [f"{name}={_word(path, key, one)}" for name, one in value.items()]
        items = value if isinstance(value, list) else [value]
        return [_word(path, key, one) for one in items]
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise ParameterError(f"--config: {path} must set {key!r} to true or false, but it is {value!r}.")
        return value
    if parameter.name == "reward_range" and isinstance(value, list):
        return ",".join(_word(path, key, one) for one in value)
    if isinstance(value, bool):
        raise ParameterError(f"--config: {path} sets {key!r} to {str(value).lower()}, but it is not a switch.")
    return _word(path, key, value)


def _word(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise ParameterError(f"--config: {path} must set {key!r} to text or a number, but it holds {value!r}.")
    text = value if isinstance(value, str) else json.dumps(value)
    if "\0" in text:
        raise ParameterError(f"--config: {path} sets {key!r} to text with a NUL character. Take it out.")
    return text
