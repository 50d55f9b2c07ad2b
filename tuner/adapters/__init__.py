"""TrialSpec to files, argv and env in one framework's words, and how its metrics come back."""
