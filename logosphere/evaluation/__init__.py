"""Evaluation: likelihoods with their kind and error, paired comparisons, scorers, validators and sample metrics."""
