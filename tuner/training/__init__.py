"""The native trial: real training of a small GPT under torch, one process a rank. Imports nothing of tuner outside."""
