"""A run folder: made by training, opened by everything else.

RUN/recipe.json          the resolved recipe
RUN/records.jsonl        what happened, one JSON object a line
RUN/checkpoints/         the two newest states of training
RUN/model/               the finished model: weights, vocabulary, score and stop rule, recipe
RUN/length_power.jsonl   length powers chosen on dev
RUN/predictions/         decoded splits; their scores and signatures in RUN/evaluations.jsonl
RUN/store/               training examples, where the recipe has them on disk
Read `train` and `load` first. Only this room writes into a run folder.
"""
