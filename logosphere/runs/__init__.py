"""Runs: a recipe carried out in a folder that can be stopped, resumed and opened again."""
