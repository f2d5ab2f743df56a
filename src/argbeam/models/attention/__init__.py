"""Parts of Transformers: layers, the cache of keys and values, positions."""
