"""A run folder: made by training, opened by everything else.

RUN/recipe.json          the resolved recipe
RUN/records.jsonl        what happened, one JSON object a line
RUN/checkpoints/         the two newest states of training
RUN/model/               the finished model: weights, vocabulary, score and stop rule, recipe
RUN/evaluations.jsonl    scores with their signatures
RUN/length_power.jsonl   length powers chosen on dev
RUN/predictions/         decoded splits
RUN/store/               training examples, where the recipe has them on disk
"""

from argbeam.run.model import build_model, start_vectors
from argbeam.run.trained import Run, load
from argbeam.run.training import train
from argbeam.trainer import Notice, Progress

__all__ = ["Notice", "Progress", "Run", "build_model", "load", "start_vectors", "train"]
