"""JSON Schema: xgrammar turns a schema into plain rules; what it would read past is refused."""

import json
import re
from collections.abc import Iterator
from typing import Any

from argbeam.errors import DataError
from argbeam.search.constraints.gbnf import read_rules, reason_of
from argbeam.search.constraints.grammar import Grammar, Spelling
from argbeam.search.constraints.notations import needed

# Keywords that xgrammar reads past; those beside which it reads no other, annotations and definitions apart; and those
# that it reads beside a type only.
_READ_PAST = {"not", "if", "propertyNames", "contains", "minContains", "maxContains", "uniqueItems", "additionalItems"}
_READ_PAST |= {"dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef"}
_READ_ALONE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_BESIDE = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
_BESIDE |= {"$anchor", "$dynamicAnchor"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_TYPE = {*_BOUNDS, "multipleOf", "minLength", "maxLength", "pattern", "format"}
# Of these xgrammar reads the first that is there.
_OF_STRINGS = ({"format"}, {"pattern"}, {"minLength", "maxLength"})
_UNNAMED = ("additionalProperties", "unevaluatedProperties")
_OTHER_PROPERTIES = ({"patternProperties"}, {*_UNNAMED})
# Keywords that make xgrammar take a list or an object for empty, unless one of the others is beside them.
_NEED_PARTS = (
    ("array", {"minItems", "maxItems", "uniqueItems"}, ("items", "prefixItems", "unevaluatedItems")),
    ("object", {"minProperties", "maxProperties", "required"}, ("properties", "patternProperties", *_UNNAMED)),
)
# xgrammar writes whole numbers of more bits as numbers with a point, and forgets the digits of smaller bounds.
_MOST_BITS, _SMALLEST_BOUND = 63, 1e-6


def json_schema_grammar(text: str, spelling: Spelling, *, where: str = "schema") -> Grammar:
    """The grammar of the JSON texts that fit a schema, spaced and ordered as by `json.dumps(..., ensure_ascii=False)`.

    Objects have the properties that the schema names, in its order, unless it has `additionalProperties`.
    """
    xgrammar = needed("xgrammar", "xgrammar")
    try:
        schema = json.loads(text)
        rules = str(xgrammar.Grammar.from_json_schema(text, any_whitespace=False))
        fault = next((fault for place, part in _schemas(schema) for fault in _faults(part, place)), None)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{where}: not a JSON Schema that can be a grammar: {reason_of(error)}") from None
    if fault is not None:
        place, keywords, remedy = fault
        raise DataError(f"{where}: {place}: {keywords} would not be read; {remedy}")
    return read_rules(rules, spelling, where)


def _schemas(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema, those in it and those that a `$ref` names, each with its place."""
    seen: set[str] = set()
    unread = [("#", root)]
    while unread:
        place, schema = unread.pop()
        if place in seen or not isinstance(schema, dict):
            continue
        seen.add(place)
        yield place, schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            unread.append((reference, _at(root, reference)))
        unread.extend((f"{place}/{name}", part) for name, part in reversed(list(_inner(schema))))


def _at(root: Any, reference: str) -> Any:
    """What a reference such as `#/$defs/a` names, as it is written; None: nothing, as in unused definitions."""
    for name in reference.split("/")[1:]:
        root = root.get(name) if isinstance(root, dict) else None
    return root


def _faults(schema: dict[str, Any], place: str) -> Iterator[tuple[str, str, str]]:
    """Where other outputs would be valid than the schema itself says: place, keywords, and what helps."""
    found = {key for key, value in schema.items() if value is not False} - _BESIDE
    for key in sorted(found & _READ_PAST):
        yield place, key, "leave it out"
    for key in [key for key in _READ_ALONE if key in found][:1]:
        # A type beside values of that type is no more than a comment.
        if beside := found - {key} - ({"type"} if key in ("enum", "const") else set()):
            yield place, ", ".join(sorted(beside)), f"write everything into {key}"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        yield place, "allOf of several schemas", "write one schema"
    if (untyped := found & _OF_TYPE) and "type" not in found:
        yield place, ", ".join(sorted(untyped)), "a type beside it is needed"
    for kinds in (_OF_STRINGS, _OTHER_PROPERTIES):
        there = [key for kind in kinds for key in sorted(kind & found)]
        if len([kind for kind in kinds if kind & found]) > 1:
            yield place, f"{', '.join(there[1:])} beside {there[0]}", "leave one of them out"
    if "multipleOf" in found and schema.get("type") != "integer":
        yield place, "multipleOf", 'the type "integer" beside it is needed'
    elif "multipleOf" in found and not (
        isinstance(schema["multipleOf"], int) and _rules(schema) != _rules(schema, without="multipleOf")
    ):
        yield place, "multipleOf", "it must be a whole number, beside bounds of a short range or none"
    if "format" in found and "string" in _types(schema) and _rules(schema) == _rules(schema | {"format": "unknown"}):
        yield place, f"format {schema['format']}", "leave it out"
    for kind, keywords, parts in _NEED_PARTS:
        alone = sorted(key for key in keywords & schema.keys() if key != "required" or isinstance(schema[key], list))
        if alone and (kind in _types(schema) or "type" not in schema) and not schema.keys() & set(parts):
            yield place, ", ".join(alone), f"{parts[0]} beside it is needed"
    yield from _misread_values(schema, place)


def _rules(schema: dict[str, Any], *, without: str = "") -> str:
    """xgrammar's rules for numbers or strings as this schema describes them."""
    own = {key: schema[key] for key in ("type", *sorted(_OF_TYPE)) if key in schema and key != without}
    return str(needed("xgrammar", "xgrammar").Grammar.from_json_schema(json.dumps(own)))


def _types(schema: dict[str, Any]) -> list[Any]:
    given = schema.get("type")
    return given if isinstance(given, list) else [given]


def _misread_values(schema: dict[str, Any], place: str) -> Iterator[tuple[str, str, str]]:
    """As `_faults`, of keywords that are read, but not with these values."""
    required, enum = (value if isinstance(value := schema.get(key), list) else [] for key in ("required", "enum"))
    named, by_pattern = (
        value if isinstance(value := schema.get(key), dict) else {} for key in ("properties", "patternProperties")
    )
    if unnamed := {str(name) for name in required} - set(named):
        yield place, f"required {', '.join(sorted(unnamed))}", "name it in properties"
    reference = str(schema.get("$ref", "#"))
    if reference != "#" and not reference.startswith("#/"):
        yield place, f"$ref {reference}", "write the schema into $defs, and refer to it as #/$defs/NAME"
    for pattern in by_pattern:
        if matched := [name for name in named if _matches(pattern, name)]:
            yield place, f"the pattern {pattern!r} for {', '.join(matched)}", "name each property in one place"
    types = _types(schema)
    if not types:
        yield place, "type []", "leave it out"
    escaped = [name for name in named if json.dumps(name) != f'"{name}"']
    if escaped and any(schema.get(key, False) is not False for key in _UNNAMED):
        yield place, f"the name {', '.join(escaped)} beside further properties", "name properties in plain ASCII"
    for key in _BOUNDS:
        if isinstance(bound := schema.get(key), float) and 0 < abs(bound) < _SMALLEST_BOUND:
            yield place, f"{key} {bound}", f"the smallest bound beside 0 is {_SMALLEST_BOUND}"
    for value in (*enum, *([schema["const"]] if "const" in schema else [])):
        if "type" in schema and not any(name in types for name in _types_of(value)):
            yield (
                place,
                f"type {json.dumps(schema['type'])} beside the value {json.dumps(value)}",
                "leave one of them out",
            )
        long = isinstance(value, int) and not -(1 << _MOST_BITS) <= value < 1 << _MOST_BITS
        if long or isinstance(value, float) or (value and isinstance(value, list | dict)):
            spelled = "numbers with a point, long ones, lists and objects would be spelled in another way"
            yield place, f"the value {json.dumps(value)}", f"{spelled}; describe it by its type"
    for pattern in (schema.get("pattern"), *by_pattern):
        if isinstance(pattern, str) and not pattern.isascii():
            yield place, f"the pattern {pattern!r} with its escapes", f"write it as {pattern!a}"
        elif isinstance(pattern, str) and _always_escapes(pattern):
            yield (
                place,
                f"the pattern {pattern!r}, whose strings JSON escapes,",
                'leave out ", \\ and control characters',
            )


def _types_of(value: Any) -> tuple[str, ...]:
    """JSON Schema's types of a JSON value."""
    if isinstance(value, int) and not isinstance(value, bool):  # Python's booleans are integers, those of JSON are not
        return "integer", "number"
    if isinstance(value, float):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ({bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}[type(value)],)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern of names matches this one; one that is no pattern in Python is taken to."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _always_escapes(pattern: str) -> bool:
    """Whether every string of a pattern has characters that JSON escapes: xgrammar would write them as they are."""
    schema = json.dumps({"type": "string", "pattern": pattern})
    return "json_string=true" not in str(needed("xgrammar", "xgrammar").Grammar.from_json_schema(schema))


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, with their places."""
    for key, value in schema.items():
        if key in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
            yield key, value
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            yield from ((f"{key}/{number}", part) for number, part in enumerate(value))
        elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            yield from ((f"{key}/{name}", part) for name, part in value.items())
