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


Constraint = Annotated[NoConstraint | TrieConstraint, Field(discriminator="kind")]
