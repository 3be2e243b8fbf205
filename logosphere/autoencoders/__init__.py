"""Autoencoders of whole sequences: readers, a compressor, decoders, and what each is taught in stage one."""
