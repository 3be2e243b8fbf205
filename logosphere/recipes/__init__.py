"""Recipes: functions that put the parts together. Below this point nothing is chosen by a string."""
