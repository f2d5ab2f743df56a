"""The model of a recipe, its weights as training starts from them."""

from pathlib import Path

import torch

from argbeam.data.readers.vectors import read_vectors
from argbeam.models import Network, make_model
from argbeam.settings import Recipe
from argbeam.tasks import Task
from argbeam.training.events import Notice


def build_model(recipe: Recipe, task: Task) -> Network:
    """The recipe's model with weights drawn from its seed."""
    model = make_model(recipe.model, source_vocabulary=len(task.source), target_vocabulary=len(task.target))
    model.initialise(bound=recipe.model.init, generator=torch.Generator().manual_seed(recipe.seed))
    return model


def start_vectors(recipe: Recipe, task: Task, model: Network) -> Notice | None:
    """Start the word vectors of both sides from the recipe's pre-trained ones."""
    settings = recipe.model
    if not settings.vectors:
        return None
    path = vectors_path(recipe)
    words = set(task.source.index) | set(task.target.index)
    vectors = read_vectors(path, words=words, size=settings.embedding)
    rows = {word: vectors.vectors_FD[row] * settings.vectors_scale for word, row in vectors.rows.items()}
    source, target = (
        {vocabulary.index[word]: row for word, row in rows.items() if word in vocabulary}
        for vocabulary in (task.source, task.target)
    )
    model.set_embeddings(source=source, target=target)
    return Notice(f"{path}: vectors for {vectors.found} of {vectors.asked} words")


def vectors_path(recipe: Recipe) -> Path:
    """The file of word vectors that the recipe names."""
    return Path(getattr(recipe.data, "root", ".")) / recipe.model.vectors
