"""The engine behind HTTP, in OpenAI's dialect: `twophase serve`.

run, background                           start it: as a process, or in a thread of a notebook
settings, app, service                    what it is told, its routes, what they share
openai_chat, openai_completions, tokens   the endpoints, each from its fields to its answer
fields, sampling, messages, body          what a client sends, read by rules
answering, sse, logprobs                  what it gets back, whole or as it comes
tenants, in_flight                        who may ask, how much, and until when
metrics, metric_families, probes          what can be seen of it
errors                                    what a client is told when it gets no answer
"""

__all__ = ["app", "background", "metric_families", "run", "settings"]
