"""The law of a sampled token, written a second time: float64, one row, sorts instead of thresholds."""

import numpy as np


def process(logits, prompt, output, settings, eos_ids=()):
    """Logits float64[V] after penalties, bans and forced tokens, before temperature."""
    off = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "min_new_tokens": 0}
    get = off | settings
    logits, text = np.array(logits, np.float64), [*prompt, *output]
    for token, bias in get.get("logit_bias", {}).items():
        logits[token] += bias
    for (*before, token), bias in get.get("sequence_bias", {}).items():
        if ends_with(text, before):
            logits[token] += bias
    for token in set(prompt) | set(output):
        factor = 1 / get["repetition_penalty"] if logits[token] > 0 else get["repetition_penalty"]
        logits[token] *= factor
    for token in set(output):
        logits[token] -= get["presence_penalty"] + get["frequency_penalty"] * list(output).count(token)
    banned = list(get.get("banned_tokens", ()))
    banned += [token for *before, token in get.get("banned_sequences", ()) if ends_with(text, before)]
    if n := get.get("no_repeat_ngram_size", 0):
        banned += [text[end] for end in range(n - 1, len(text)) if ends_with(text, text[end - n + 1 : end])]
    if len(output) < get["min_new_tokens"]:
        banned += list(eos_ids)
    logits[banned] = -np.inf
    for place, token in ((0, "forced_first_token"), (get.get("budget", 0) - 1, "forced_last_token")):
        if len(output) == place and (forced := get.get(token, -1)) >= 0:
            logits = np.where(np.arange(len(logits)) == forced, 0.0, -np.inf)
    if not output:
        logits[list(get.get("suppressed_first_tokens", ()))] = -np.inf
    return logits


def ends_with(text, end):
    return list(text[len(text) - len(end) :]) == list(end)


def log_law(processed, settings):
    """Log-probabilities float64[V] after temperature, top-k, top-p and min-p."""
    logits = processed / settings.get("temperature", 1.0)
    vocab_size = len(logits)
    if k := settings.get("top_k", 0):
        logits = np.where(logits >= np.sort(logits)[-min(k, vocab_size)], logits, -np.inf)
    if (top_p := settings.get("top_p", 1.0)) < 1:
        probabilities = softmax(logits)
        keep = np.array([probabilities[logits > value].sum() < top_p for value in logits])
        logits = np.where(keep, logits, -np.inf)
    if min_p := settings.get("min_p", 0.0):
        probabilities = softmax(logits)
        logits = np.where(probabilities >= min_p * probabilities.max(), logits, -np.inf)
    with np.errstate(divide="ignore"):
        return np.log(softmax(logits))


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def table_log_law(table, settings, prompt, eos_ids=()):
    """Function of the text so far (a tuple) that gives the next token's log-law under a `TableLM`."""

    def law(text):
        previous = text[-2] if len(text) > 1 else 0
        output = text[len(prompt) :]
        return log_law(process(table[previous, text[-1]], prompt, output, settings, eos_ids), settings)

    return law
