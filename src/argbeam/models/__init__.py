"""Models: what the search and the losses ask of one, and those that come with argbeam."""

from argbeam import settings
from argbeam.models.contract import Model, Network
from argbeam.models.conv import ConvSeq2Seq
from argbeam.models.language_model import LstmLanguageModel
from argbeam.models.lstm import LstmSeq2Seq


def make_model(model: settings.Model, *, source_vocabulary: int, target_vocabulary: int) -> Network:
    """The model that a recipe asks for, its weights still to be drawn."""
    match model:
        case settings.LstmModel():
            return LstmSeq2Seq(
                source_vocabulary=source_vocabulary,
                target_vocabulary=target_vocabulary,
                layers=model.layers,
                hidden=model.hidden,
                embedding=model.embedding,
                dropout=model.dropout,
                input_feeding=model.input_feeding,
            )
        case settings.LstmLmModel():
            return LstmLanguageModel(
                vocabulary=target_vocabulary,
                layers=model.layers,
                hidden=model.hidden,
                embedding=model.embedding,
                dropout=model.dropout,
            )
        case settings.ConvModel():
            return ConvSeq2Seq(
                source_vocabulary=source_vocabulary,
                target_vocabulary=target_vocabulary,
                layers=model.layers,
                hidden=model.hidden,
                embedding=model.embedding,
                dropout=model.dropout,
                window=model.window,
                positions=model.positions,
            )


__all__ = ["ConvSeq2Seq", "LstmLanguageModel", "LstmSeq2Seq", "Model", "Network", "make_model"]
