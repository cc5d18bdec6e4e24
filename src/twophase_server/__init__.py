"""The engine behind HTTP, with OpenAI's API: `twophase serve`.

run, background                           start it: as a process, or in a thread of a notebook
settings, app, service                    options, routes, and the state that routes share
openai_chat, openai_completions, tokens   the endpoints, each from fields to answer
fields, sampling, messages, body          the rules for a client's input
answering, logprobs                       answers, whole or streamed
tenants, in_flight                        API keys and quotas; requests in flight
metrics, metric_families                 observation
errors                                    refusals and failures
"""

__all__ = ["app", "background", "metric_families", "run", "settings"]
