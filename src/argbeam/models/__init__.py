"""Models: what the search and the losses ask of one, and those that come with argbeam."""

from argbeam.models.contract import Model
from argbeam.models.lstm import LstmSeq2Seq

__all__ = ["LstmSeq2Seq", "Model"]
