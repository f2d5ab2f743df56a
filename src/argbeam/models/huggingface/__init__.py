"""Models of Hugging Face's transformers behind argbeam's contract: `adapter` the model, `attention` its function."""
