"""Decoding with a trained model: batches of sentences, whole splits, CUDA graphs of the search.

Read `batch_decoder` and `captured_search` first. `length_power` chooses the length normalisation on dev. Nothing here
reads run folders or prints.
"""
