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
_READ_PAST = {"not", "if", "propertyNames", "contains", "uniqueItems", "additionalItems"}
_READ_PAST |= {"dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef"}
_READ_ALONE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_BESIDE = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
_BESIDE |= {"$anchor", "$dynamicAnchor"}
_OF_TYPE = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OF_TYPE |= {"minLength", "maxLength", "pattern", "format"}
# Of these xgrammar reads the first that is there.
_OF_STRINGS = ({"format"}, {"pattern"}, {"minLength", "maxLength"})
_OTHER_PROPERTIES = ({"patternProperties"}, {"additionalProperties", "unevaluatedProperties"})


def json_schema_grammar(text: str, spelling: Spelling, *, where: str = "schema") -> Grammar:
    """The grammar of the JSON texts that fit a schema, spaced and ordered as by `json.dumps(..., ensure_ascii=False)`.

    Objects have the properties that the schema names, in its order, unless it has `additionalProperties`.
    """
    xgrammar = needed("xgrammar", "xgrammar")
    try:
        schema = json.loads(text)
        rules = str(xgrammar.Grammar.from_json_schema(text, any_whitespace=False))
        fault = next(_faults(schema, "#"), None)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{where}: not a JSON Schema that can be a grammar: {reason_of(error)}") from None
    if fault is not None:
        place, keywords, remedy = fault
        raise DataError(f"{where}: {place}: {keywords} would not be read; {remedy}")
    return read_rules(rules, spelling, where)


def _faults(schema: Any, place: str) -> Iterator[tuple[str, str, str]]:
    """Where other outputs would be valid than the schema says: place, keywords, and what helps."""
    if not isinstance(schema, dict):
        return
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
    yield from _misread_values(schema, place)
    for name, part in _inner(schema):
        yield from _faults(part, f"{place}/{name}")


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
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    for value in (*enum, *([schema["const"]] if "const" in schema else [])):
        if "type" in schema and not any(name in types for name in _types_of(value)):
            yield place, f"type {json.dumps(given)} beside the value {json.dumps(value)}", "leave one of them out"
        if isinstance(value, float) or (value and isinstance(value, list | dict)):
            spelled = "numbers with a point, lists and objects would be spelled in another way"
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
