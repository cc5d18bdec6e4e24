"""What serving is measured by: workloads that arrive by the clock, what became of each request, reports and pictures.

Plain data in, plain data out: records come from an engine's outputs or from a simulator, step traces from either, and
nothing in here runs a model or imports tensors. Seconds throughout, on whichever clock the records' maker used.

    workloads, arrivals, lengths   what is asked, and when
    records, slo                   what became of a request, and what was promised
    latency, report                percentiles, goodput, the summary of a run
    steps, lanes                   what the engine did, step by step and request by request
    pictures                       the same for the eye
"""

__all__ = ["arrivals", "latency", "lengths", "pictures", "records", "report", "slo", "steps", "workloads"]
