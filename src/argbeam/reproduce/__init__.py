"""The paper's tables, reproduced: which runs they need, how these are run, and what is made of them."""
