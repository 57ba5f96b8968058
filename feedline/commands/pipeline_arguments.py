"""The arguments and options that commands on a pipeline share: the file, `--set`, `--source`, `--json`.

Runs in: the process of the command, and that of a shell's completion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from feedline.errors import FeedlineError

if TYPE_CHECKING:
    from feedline.config import PipelineSpec


# --------------------------------------------------------------------------------------------------------------------
# Complete arguments in a shell: pipelines, keys and values of `--set`, names of features and sources, fixed words. It
# prints nothing but completions: what cannot be completed is left to the shell, which knows files. What a completion
# imports, it imports when it is asked for.

_PIPELINES = (".yaml", ".yml")
_NOT_KEYS = ("version", "features", "sources", "dedup")  # of one value, or whose keys are names of the pipeline's own
_WORDS = "COMP_WORDS"  # by which bash's script hands over the words of the line, one a line
_POSITION = "COMP_CWORD"
_SET = "--set"
_KEY = "_FEEDLINE_OVERRIDE_KEY"

Completion = tuple[str, str]  # a word, and its description


class OverrideKey(NamedTuple):
    """A key that `--set` can override, dotted. values: all that it may have, or, with "", some of them."""

    key: str
    values: tuple[str, ...]
    description: str


def complete_pipeline(incomplete: str) -> list[str]:
    """Files of pipelines that begin so; none leaves it to the shell, as to enter a folder."""
    folder, _, name = incomplete.rpartition("/")
    begin = incomplete[: len(incomplete) - len(name)]
    try:
        entries = sorted(os.scandir(folder or ("/" if begin else ".")), key=lambda entry: entry.name)
        names = [entry.name for entry in entries if entry.name.startswith(name) and _is_pipeline(entry)]
        folders = [f"{each.name}/" for each in entries if each.name.startswith(name or "\0") and each.is_dir()]
    except OSError:
        return []
    found = [begin + each for each in [*names, *folders]] if names else []
    return found if all(each.isprintable() and not set(each) & set(" \"'\\$`*?[]{}()<>|&;~") for each in found) else []


def complete_override(incomplete: str) -> list[Completion]:
    """Keys for `--set`, and values behind the `=` of those that have few."""
    from feedline.config.pipeline_spec import json_schema  # noqa: PLC0415 -- pydantic: 0.3 s, at a press of Tab only

    keys = override_keys(json_schema())
    key, equals, value = incomplete.partition("=")
    if before := os.environ.get(_KEY):
        return [(each, "") for one in keys if one.key == before for each in one.values if each]
    if equals:
        values = [each for one in keys if one.key == key for each in one.values if each.startswith(value)]
        return [(f"{key}={each}", "") for each in values if each]
    found = [each for each in keys if each.key.startswith(incomplete)]
    if len(found) == 1:
        return [(f"{only.key}={each}", only.description) for only in found for each in only.values]
    return [(f"{each.key}=", each.description) for each in found]


def complete_features(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names and groups of the features of the pipeline on the line."""
    spec = _spec_on(ctx)
    features = () if spec is None else spec.features
    names = dict.fromkeys([*(each.name for each in features), *(each.group for each in features)])
    return [name for name in names if name.startswith(incomplete)]


def complete_source(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the sources of the pipeline on the line."""
    spec = _spec_on(ctx)
    return [] if spec is None else [each.name for each in spec.sources if each.name.startswith(incomplete)]


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """A completion for an argument that is one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def override_keys(schema: Mapping[str, Any]) -> list[OverrideKey]:
    """The keys of the JSON Schema of pipeline.yaml, sections before their keys. Pure."""
    return list(_keys(schema, schema, ""))


def _keys(schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[OverrideKey]:
    for key, value in schema.get("properties", {}).items():
        if not path and key in _NOT_KEYS:
            continue
        parts = list(_alternatives(value, root))
        sections = [part for part in parts if "properties" in part]
        words = [word for part in parts for word in part.get("enum", [part["const"]] if "const" in part else [])]
        words += [word for part in parts if part.get("type") == "boolean" for word in (True, False)]
        hints = [*value.get("examples", []), *([value["default"]] if "default" in value else [])]
        if words or not sections:
            hint = next((_text(each) for each in hints if isinstance(each, (str, int, float))), "")
            values = tuple(dict.fromkeys(map(_text, words)))
            is_closed = all(
                {"enum", "const", "properties"} & part.keys() or part.get("type") == "boolean" for part in parts
            )
            description = value.get("description") or next((part.get("description", "") for part in parts), "")
            yield OverrideKey(
                path + key, values if is_closed else ("", *values, *([hint] if hint else [])), description
            )
        for section in sections:
            yield from _keys(section, root, f"{path}{key}.")


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a value may be, without variables and nulls."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name != "variable":
            yield from _alternatives(root["$defs"][name], root)
    elif "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _alternatives(part, root)
    elif schema.get("type") != "null":
        yield schema


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_pipeline(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_PIPELINES) and entry.is_file()


def _spec_on(ctx: typer.Context) -> PipelineSpec | None:
    """The pipeline that is named on the line, if it can be read."""
    from feedline.config import load_spec  # noqa: PLC0415 -- pydantic: 0.3 s, at a press of Tab only

    words = [ctx.params.get("pipeline"), *ctx.args]  # the latter where the line ends in an option without its value
    paths = [Path(each) for each in words if isinstance(each, (str, Path)) and str(each).endswith(_PIPELINES)]
    try:
        return load_spec(paths[0], {}) if paths else None
    except FeedlineError:
        return None


def rejoin_override(environ: MutableMapping[str, str]) -> None:
    """Rejoin, in the variables of bash's completion, the override that bash has divided at its `=`, if its value is to
    be completed: the value stays on the line, the key goes to a variable of its own, as bash replaces the value."""
    if _WORDS in environ and environ.get(_POSITION, "").isdecimal():
        words, position, key = divide_override(environ[_WORDS].split("\n"), int(environ[_POSITION]))
        environ[_WORDS], environ[_POSITION], environ[_KEY] = "\n".join(words), str(position), key


def divide_override(words: Sequence[str], position: int) -> tuple[list[str], int, str]:
    """The words of a line up to the one to complete, whose key is returned if it is that of `--set KEY = VALUE`; its
    new position; the key or "". Pure."""
    line = [*words[: position + 1], *[""] * (position + 1 - len(words))]
    if line[-1] == "=":  # what begins behind it
        line.append("")
    if line[-2:-1] == ["="] and line[-4:-3] == [_SET]:
        return [*line[:-3], line[-1]], len(line) - 3, line[-3]
    return list(words), position, ""


# --------------------------------------------------------------------------------------------------------------------

PipelinePath = Annotated[
    Path, typer.Argument(metavar="PIPELINE.YAML", help="The pipeline.", autocompletion=complete_pipeline)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key: --set batch.tail=pad", autocompletion=complete_override),
]
Source = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="One of the pipeline's `sources` alone.", autocompletion=complete_source),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def names_pipeline(text: str) -> bool:
    """Whether an argument that may be a table names a pipeline.yaml."""
    return text.endswith((".yaml", ".yml"))
