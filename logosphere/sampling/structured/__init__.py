"""Texts in a regular language: regular expressions and JSON schemas as automata over tokens."""
