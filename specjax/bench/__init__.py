"""Benchmarks: plain decoding, drafts and other libraries, measured in turns on the same prompts."""
