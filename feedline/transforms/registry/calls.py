"""Resolve the call of an op in pipeline.yaml: find the op by name and check the parameters.

Runs in: every process that reads features. Pure.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re

from pydantic import ValidationError

from feedline.config.features import OpCall
from feedline.config.yaml_document import Path, describe_value, path_text, unknown_message
from feedline.transforms.registry.op import OPS, BoundOp, Op, OpError, Parameters, find_op

_QUOTED = re.compile(r"'([^']*)'")

# Names in other systems (lower case, without underscores) -> the remedy in the message.
NAMES_ELSEWHERE: dict[str, str] = {
    "clamp": "It is called clip here",
    "firstx": "It is called first_x here",
    "sigridhash": "It is called sigrid_hash here",
    "fillmissing": "It is called fill_null here; `expr: NAME is None` is the indicator",
    "logop": "It is called log1p here",
    "differencelag": "A feature depends on one row alone: add the difference as a column when the table is written",
    "computescore": "Take one of id_overlap_count, has_id_overlap, get_max_count, get_jaccard_similarity, "
    "get_cosine_similarity, get_score_sum, get_score_min, get_score_max",
    **dict.fromkeys(
        ("categorify", "ordinalencoder", "labelencoder", "stringindexer", "stringlookup", "integerlookup"),
        "It is called vocabulary here",
    ),
    "droplowcardinality": "Leave the feature out: `feedline fit --show` shows the size of each vocabulary",
    **dict.fromkeys(("targetencoder", "meanencoder"), "It is called target_encoding here"),
    **dict.fromkeys(
        ("joingroupby", "groupbystatistics", "countencoder", "frequencyencoder"), "It is called group_statistics here"
    ),
    **dict.fromkeys(("normalize", "standardscaler"), "It is called standardize here"),
    **dict.fromkeys(("normalizeminmax", "minmaxscaler"), "It is called min_max here"),
    **dict.fromkeys(("filter", "dropna"), "Only source.where drops rows"),
    "groupby": "A feature depends on one row alone: group when the table is written, or use group_statistics",
    "lambdaop": "Write an expression with expr, or a Python function with allow_code: true",
    **dict.fromkeys(("addmetadata", "addproperties", "addtags"), "A feature's group is its role"),
    "rename": "Write NAME: {column: OLD}",
    "reducedtypesize": "A feature's group decides its type",
    "datastats": "`feedline run --json` reports statistics of every feature",
    "sampling": "Rows are sampled by source.sample",
    "valuecount": "{pad: LENGTH} makes lists equally long",
}


def resolve(call: OpCall) -> BoundOp:
    """The op of a call, with checked parameters. Raises OpError."""
    found = find_op(call.op)
    if found is None:
        plain = call.op.lower().replace("_", "")
        hint = next((f"It is written {name} here" for name in OPS if name.replace("_", "") == plain), None)
        remedy = NAMES_ELSEWHERE.get(plain, hint)
        raise OpError(
            call.path, f"unknown op: got {call.op!r}. {remedy}" if remedy else unknown_message("op", call.op, OPS)
        )
    return BoundOp(op=found, parameters=checked_parameters(found, call), path=call.path)


def checked_parameters(found: Op, call: OpCall) -> Parameters:
    """The call's parameters as the op declares them. Raises OpError."""
    with contextlib.suppress(ValidationError):  # the errors below name the wrong parameter
        return _parameters(found.parameters, call.arguments)
    arguments = call.value
    path: Path = (*call.path, found.name)
    if arguments and not found.fields:
        raise OpError(path, f"{found.name} takes no parameters: got {describe_value(arguments.get('', arguments))}")
    if "" in arguments:
        arguments = {found.fields[0]: arguments[""]}
    else:
        for key in arguments:
            if key not in found.fields:
                raise OpError((*path, key), unknown_message(f"parameter of {found.name}", key, found.fields))
    try:
        return found.parameters.model_validate_json(json.dumps(arguments))
    except ValidationError as error:
        raise _complaint(found, path, error, bare="" in call.value) from None


@functools.lru_cache(maxsize=4096)
def _parameters(model: type[Parameters], arguments: str) -> Parameters:
    """Cached, because hundreds of features call ops with the same parameters, several times per compilation."""
    value = json.loads(arguments)
    if "" in value:
        value = {next(iter(model.model_fields), ""): value[""]}
    return model.model_validate_json(json.dumps(value))


def _complaint(op: Op, path: Path, error: ValidationError, *, bare: bool) -> OpError:
    details = error.errors(include_url=False)
    first = details[0]
    if first["type"] == "missing":
        missing = first["loc"][0]
        return OpError(path[:-1], f"{op.name} needs {missing}: write {{{op.name}: {{{missing}: …}}}}")
    where = _steps(first["loc"])
    if first["type"] == "value_error":  # a rule of the model, with its own message
        return OpError(path if bare else (*path, *where), f"{op.name}: {first['ctx']['error']}")
    same = [detail for detail in details if _steps(detail["loc"]) == where]
    choices = dict.fromkeys(_expectation(detail["msg"]) for detail in same)
    numbers = any(choice.endswith("number") for choice in choices)
    expected = " or ".join(choice for choice in choices if not (choice == "an integer" and numbers))
    name = path_text((op.name, *where))
    near = difflib.get_close_matches(str(first["input"]), _QUOTED.findall(expected), n=1)
    remedy = f". Did you mean {near[0]!r}?" if near else ""
    return OpError(
        path if bare else (*path, *where), f"{name} must be {expected}: got {describe_value(first['input'])}{remedy}"
    )


def _expectation(message: str) -> str:
    words = message.removeprefix("Input should be ")
    for pydantics, ours in (("a valid integer", "an integer"), ("a valid array", "a list"), ("a valid ", "a ")):
        words = words.replace(pydantics, ours)
    return words


def _steps(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The parameter and the positions inside it, without the names of a union's members."""
    return (*location[:1], *(step for step in location[1:] if isinstance(step, int)))
