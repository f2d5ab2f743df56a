"""Models: the contract for the search and the losses, and the models of argbeam.

Read `contract` and `lstm` first, then `transformer`. `recurrence/` has the loops over time, `attention/` the layers and
the cache of Transformers; each Triton kernel is beside its plain twin. No search, no loss and no task goes in here.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.errors import CheckpointError
from argbeam.models.contract import Model, Network
from argbeam.models.conv import ConvSeq2Seq
from argbeam.models.language_model import LstmLanguageModel
from argbeam.models.lstm import LstmSeq2Seq
from argbeam.models.transformer import Transformer, TransformerLm
from argbeam.settings import models as settings


def make_model(
    model: settings.Model, *, source_vocabulary: int, target_vocabulary: int, ordered_source: bool = True
) -> Network:
    """The model that a recipe asks for, its weights still to be drawn; `ordered_source`: no bag of words."""
    sides: dict[str, Any] = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
    shared = {"layers", "hidden", "dropout"}
    lstm: dict[str, Any] = model.model_dump(include={*shared, "embedding"})
    transformer: dict[str, Any] = model.model_dump(include={*shared, "heads", "feed_forward", "tied"})
    match model:
        case settings.LstmModel():
            return LstmSeq2Seq(**sides, **lstm, input_feeding=model.input_feeding)
        case settings.LstmLmModel():
            return LstmLanguageModel(vocabulary=target_vocabulary, **lstm)
        case settings.ConvModel():
            return ConvSeq2Seq(**sides, **lstm, window=model.window, positions=model.positions)
        case settings.TransformerModel() | settings.TransformerLmModel():
            made = Transformer if isinstance(model, settings.TransformerModel) else TransformerLm
            return made(**sides, **transformer, rotary=model.positions == "rotary", ordered_source=ordered_source)
        case settings.HuggingFaceModelSettings():
            from argbeam.models.huggingface.folder import open_model

            return open_model(model.path)


def output_width(model: Model, batch: Batch) -> int:
    """The width of the output layer's input."""
    with torch.no_grad():
        state = model.step(model.encode(batch, None), torch.full_like(batch.target_length_B, batch.specials.bos))
        return model.output(state).shape[1]


def load_weights(model: Network | nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copy the tensors named `prefix` + weight into the weights, in place: captured steps read that memory."""
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            saved = tensors[prefix + name]
            # copy_ would broadcast a smaller tensor, and round one of another type.
            if (saved.shape, saved.dtype) != (weight.shape, weight.dtype):
                kinds = [f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in (saved, weight)]
                raise CheckpointError(f"{prefix}{name} is {kinds[0]}; the model of the recipe has {kinds[1]}")
            weight.copy_(saved)


__all__ = ["ConvSeq2Seq", "LstmLanguageModel", "LstmSeq2Seq", "Model", "Network", "Transformer", "TransformerLm"]
__all__ += ["load_weights", "make_model", "output_width"]
