"""A validator of JSON Schema, for the keywords that the schemas of this project use."""

from __future__ import annotations

import json
import re

TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "boolean": bool, "null": type(None)}
ANNOTATIONS = {"$schema", "$defs", "title", "description", "default", "examples"}


class Validator:
    """A validator of JSON Schema 2020-12 for the keywords that occur; an unknown keyword fails the test."""

    def __init__(self, schema):
        self.root = schema

    def valid(self, value, schema=None):
        schema = self.root if schema is None else schema
        return all(
            getattr(self, f"_{key.lstrip('$')}")(item, value, schema)
            for key, item in schema.items()
            if key not in ANNOTATIONS
        )

    def _ref(self, ref, value, _):
        return self.valid(value, self.root["$defs"][ref.removeprefix("#/$defs/")])

    def _type(self, kind, value, _):
        if kind == "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, TYPES[kind]) and (kind != "number" or not isinstance(value, bool))

    def _const(self, const, value, _):
        return value == const and type(value) is type(const)

    def _enum(self, options, value, _):
        return value in options

    def _minimum(self, bound, value, _):
        return not isinstance(value, (int, float)) or value >= bound

    def _maximum(self, bound, value, _):
        return not isinstance(value, (int, float)) or value <= bound

    def _exclusiveMinimum(self, bound, value, _):  # noqa: N802
        return not isinstance(value, (int, float)) or value > bound

    def _minLength(self, bound, value, _):  # noqa: N802
        return not isinstance(value, str) or len(value) >= bound

    def _pattern(self, pattern, value, _):
        return not isinstance(value, str) or re.search(pattern, value) is not None

    def _minItems(self, bound, value, _):  # noqa: N802
        return not isinstance(value, list) or len(value) >= bound

    def _maxItems(self, bound, value, _):  # noqa: N802
        return not isinstance(value, list) or len(value) <= bound

    def _uniqueItems(self, unique, value, _):  # noqa: N802
        return not isinstance(value, list) or not unique or len({json.dumps(item) for item in value}) == len(value)

    def _items(self, schema, value, _):
        return not isinstance(value, list) or all(self.valid(item, schema) for item in value)

    def _minProperties(self, bound, value, _):  # noqa: N802
        return not isinstance(value, dict) or len(value) >= bound

    def _maxProperties(self, bound, value, _):  # noqa: N802
        return not isinstance(value, dict) or len(value) <= bound

    def _required(self, names, value, _):
        return not isinstance(value, dict) or set(names) <= set(value)

    def _properties(self, schemas, value, _):
        return not isinstance(value, dict) or all(
            self.valid(value[key], schemas[key]) for key in value if key in schemas
        )

    def _patternProperties(self, schemas, value, _):  # noqa: N802
        return not isinstance(value, dict) or all(
            self.valid(item, schema)
            for key, item in value.items()
            for pattern, schema in schemas.items()
            if re.search(pattern, key)
        )

    def _propertyNames(self, schema, value, _):  # noqa: N802
        return not isinstance(value, dict) or all(self.valid(key, schema) for key in value)

    def _additionalProperties(self, schema, value, parent):  # noqa: N802
        if not isinstance(value, dict):
            return True
        patterns = parent.get("patternProperties", {})
        known = {key for key in value if any(re.search(pattern, key) for pattern in patterns)}
        others = [item for key, item in value.items() if key not in known | parent.get("properties", {}).keys()]
        return all(schema if isinstance(schema, bool) else self.valid(item, schema) for item in others)

    def _anyOf(self, schemas, value, _):  # noqa: N802
        return any(self.valid(value, schema) for schema in schemas)

    def _oneOf(self, schemas, value, _):  # noqa: N802
        return sum(self.valid(value, schema) for schema in schemas) == 1

    def _not(self, schema, value, _):
        return not self.valid(value, schema)
