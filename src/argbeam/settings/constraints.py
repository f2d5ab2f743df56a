"""Settings of constraints: the valid outputs of a task of open length."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from argbeam.settings.strict import Settings


class NoConstraint(Settings):
    """Every output is valid."""

    kind: Literal["none"] = "none"


class OutputConstraint(Settings):
    """Keys of all constraints."""

    forbidden: Literal["error", "leave_out"] = Field(
        default="error",
        description="targets that the constraint forbids: an error, or left out of training, counted, and wrong on dev "
        "and test",
    )


class TrieConstraint(OutputConstraint):
    """Outputs are entries of a list."""

    kind: Literal["trie"] = "trie"
    file: str = Field(default="", description="the list, an entry a line as in the target files, under data.root")
    training_targets: bool = Field(default=False, description="the targets of the training data are entries too")

    @model_validator(mode="after")
    def _has_entries(self) -> "TrieConstraint":
        if not self.file and not self.training_targets:
            raise ValueError('a trie needs entries: file = "...", training_targets = true, or both')
        return self


class GrammarConstraint(OutputConstraint):
    """Outputs are derived by a grammar."""

    kind: Literal["grammar"] = "grammar"
    file: str = Field(min_length=1, description="the grammar, under data.root; shipped:constraints/nl-rx.lark is one")
    notation: Literal["lark", "regex", "gbnf", "json_schema"] = Field(
        default="lark",
        description="Lark's EBNF; a regular expression; GBNF and JSON Schema, over the text of outputs",
    )
    depth: int = Field(
        default=32, ge=1, le=1024, description="most nested rules of an output, where the grammar runs on the device"
    )


Constraint = Annotated[NoConstraint | TrieConstraint | GrammarConstraint, Field(discriminator="kind")]
