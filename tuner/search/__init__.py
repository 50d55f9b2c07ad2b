"""What to try next: recipes, samplers, objective, budget. Optuna is imported in this package only, and late."""
