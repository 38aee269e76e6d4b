"""Text in, text out: prompts, streaming, timing and reports, all of it on the host."""
