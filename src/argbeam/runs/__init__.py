"""Run folders: made by training, opened by everything else.

RUN/recipe.json, records.jsonl         the resolved recipe; one JSON object per epoch and stage
RUN/checkpoints/, model/, store/       the two newest states of training; the finished model; training examples on disk
RUN/evaluations.jsonl, predictions/    scores with their signatures; decoded splits
RUN/length_power.jsonl, tensorboard/   length powers chosen on dev; curves

Read `train` and `load` first. What a run computes belongs in the rooms below, what a user sees in `reports` and `cli`.
"""
