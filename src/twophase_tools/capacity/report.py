"""A plan as text, and as plain data for JSON."""

import math
from dataclasses import asdict
from typing import Any

from twophase_tools.capacity.memory import Fit
from twophase_tools.capacity.plan import CROWDED, Plan, PoolsPlan
from twophase_tools.capacity.steady_state import SteadyState
from twophase_tools.capacity.units import GB, GIB, in_both


def to_text(plan: Plan) -> str:
    warnings = warnings_of(plan)
    told = [f"warnings: {len(warnings)}", *(f"- {line}" for line in warnings)] if warnings else ["no warnings"]
    sections = (_about(plan), _memory(plan), _fits(plan), _times(plan), _pools(plan), told)
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _about(plan: Plan) -> list[str]:
    config = plan.config
    stored = config.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    weights = config.dtype if config.quantization is None else f"{config.dtype}, weights in {config.quantization}"
    return [
        f"{config.shape.name} in {weights}, K/V in {stored}, on {config.tensor_parallel_size} x {config.hardware.name}",
        f"model: {config.shape.source}",
        f"hardware: {config.hardware.source}",
    ]


def _memory(plan: Plan) -> list[str]:
    config, table = plan.config, plan.memory
    source = "estimated" if config.workspace is None else "as given"
    rows = (
        ("memory", table.total_bytes, ""),
        ("- headroom", table.headroom_bytes, f"gpu_memory_utilization {config.gpu_memory_utilization:g}"),
        ("- weights", table.weight_bytes, ""),
        ("- workspace", table.workspace_bytes, f"activations and logits of a step, {source}"),
        ("= left for K/V", table.pool_bytes, f"{table.num_blocks:,} blocks of {config.block_size} tokens"),
    )
    shape = config.shape
    lines = ["memory of each GPU (1 GB = 10^9 bytes, 1 GiB = 2^30 bytes)", f"{'':18}{'GB':>10}{'GiB':>10}{'share':>8}"]
    lines += [
        f"{name:18}{num_bytes / GB:10,.2f}{num_bytes / GIB:10,.2f}{num_bytes / table.total_bytes:8.1%}  {note}".rstrip()
        for name, num_bytes, note in rows
    ]
    n = config.tensor_parallel_size
    shared = f", {table.kv_bytes_per_token:,} of them on each GPU" if n > 1 else ""
    lines.append(f"K/V of a token {shape.kv_bytes_per_token:,} bytes{shared}; of a block {n * table.block_bytes:,}")
    return lines


def _fits(plan: Plan) -> list[str]:
    def line(what: str, fits: Fit) -> str:
        blocks = f"{fits.num_blocks:,} blocks, {in_both(fits.num_bytes)}"
        return f"{fits.num_requests:8,}  of {fits.num_tokens:,} tokens, {what}: each {blocks}"

    lines = ["requests that fit at once"]
    lines += [line("the context limit", plan.at_limit), line("the workload's mean", plan.at_mean)]
    return [*lines, f"{plan.max_requests:8,}  run at once at most, with max_num_seqs {plan.config.max_num_seqs:,}"]


def _times(plan: Plan) -> list[str]:
    workload, most = plan.config.workload, plan.saturated
    lines = [
        f"times by roofline, not measured; {workload.rate:g} requests/s of {workload.prompt_tokens:,} + "
        f"{workload.output_tokens:,} tokens"
    ]
    if most is None:
        return [*lines, "none: not even one request fits"]
    lines.append(f"{'':16}{'requests/s':>12}{'at once':>10}{'TTFT':>12}{'TPOT':>12}{'tokens/s':>12}")
    rows = (
        ("alone", plan.alone),
        ("at this rate", plan.at_rate),
        ("within the SLO", plan.within_slo),
        ("at most", most),
    )
    lines += [_row(name, state, workload.output_tokens) for name, state in rows if state is not None]
    ridge = f"the products of decodes are bound by arithmetic from {plan.cost.ridge_batch:,.0f} sequences on"
    return [
        *lines,
        f"at most, by Little's law: {most.num_requests:,.1f} at once / {most.num_requests / most.requests_per_s:.4g} s "
        f"each = {most.requests_per_s:.4g} requests/s, limited by {plan.limited_by}; utilisation "
        f"{plan.utilisation:.2f}",
        ridge,
        plan.config.assumptions.to_text(),
        "taken to be steady: Poisson arrivals, all requests of mean length, nothing shared, nobody preempted; "
        "`twophase simulate` plays it out",
    ]


def _row(name: str, state: SteadyState, output_tokens: int) -> str:
    tpot = "-" if state.tpot_s is None else f"{state.tpot_s * 1e3:,.1f} ms"
    return (
        f"{name:16}{state.requests_per_s:12,.3g}{state.num_requests:10,.1f}{state.ttft_s * 1e3:9,.1f} ms{tpot:>12}"
        f"{state.requests_per_s * output_tokens:12,.0f}"
    )


def _pools(plan: Plan) -> list[str]:
    pools = plan.pools
    if pools is None:
        return []
    config, link = plan.config, pools.pools
    lines = ["prefill and decode apart, by roofline, not measured (the above: one engine that does both)"]
    for name, side in pools.sides.items():
        gpus = f"{side.plan.config.tensor_parallel_size} x {side.plan.config.hardware.name}"
        if side.each_per_s is None:
            lines.append(f"{name:8} engines of {gpus}: not even one request fits")
            continue
        count = "no number of" if side.num_engines is None else f"{side.num_engines:,}"
        how = "as given" if side.is_given else "proposed"
        use = "" if side.utilisation is None else f", utilisation {side.utilisation:.2f}"
        lines.append(f"{name:8}{count:>6} engines of {gpus}, {how}: at most {side.each_per_s:.4g} requests/s each{use}")
    num_bytes = config.workload.prompt_tokens * config.shape.kv_bytes_per_token
    speed = f"{pools.transfer_s * 1e3:,.2f} ms at {link.link_bytes_per_s / GB:g} GB/s"
    lines.append(f"K/V of a prompt: {in_both(num_bytes)}, {speed}")
    if pools.ttft_s is not None and pools.tpot_s is not None:
        lines.append(
            f"together at {config.workload.rate:g} requests/s on {pools.num_gpus} GPUs: TTFT "
            f"{pools.ttft_s * 1e3:,.1f} ms, TPOT {pools.tpot_s * 1e3:,.1f} ms"
        )
    if plan.saturated is not None:
        num_mixed = math.ceil(config.workload.rate / (CROWDED * plan.saturated.requests_per_s))
        lines.append(
            f"engines that do both, of {config.tensor_parallel_size} x {config.hardware.name}: {num_mixed:,} would "
            f"run at {CROWDED:.0%} at most"
        )
    return lines


def warnings_of(plan: Plan) -> list[str]:
    """Reasons to think again, the gravest first."""
    config, table, slo = plan.config, plan.memory, plan.config.slo
    rate, found = config.workload.rate, []
    if plan.pools is not None:
        return _pool_warnings(plan.pools)
    if not plan.at_mean.num_requests:
        needed, usable = table.weight_bytes + table.workspace_bytes, table.total_bytes - table.headroom_bytes
        found.append(f"does not fit: weights and workspace take {in_both(needed)} of {in_both(usable)} on each GPU")
    elif not plan.at_limit.num_requests:
        found.append(
            f"a request of {config.max_model_len:,} tokens does not fit: the pool has {table.num_blocks:,} blocks"
        )
    if plan.saturated is not None and rate > plan.saturated.requests_per_s:
        found.append(f"overloaded: {rate:g} requests/s arrive and at most {plan.saturated.requests_per_s:.3g} end")
    if slo is not None and plan.alone is not None and not plan.alone.keeps(slo):
        found.append(f"out of reach: an empty engine does not keep {slo.to_text()}")
    elif slo is not None and plan.at_rate is not None and not plan.at_rate.keeps(slo):
        found.append(f"at {rate:g} requests/s the mean request does not keep {slo.to_text()}")
    return found


def _pool_warnings(pools: PoolsPlan) -> list[str]:
    slo, found = pools.config.slo, []
    for name, side in pools.sides.items():
        if side.each_per_s is None:
            found.append(f"does not fit: an engine of the {name} pool has no room for a request of mean length")
        elif side.utilisation is None:
            found.append(f"out of reach: no number of engines in the {name} pool is enough")
        elif side.utilisation > 1:
            most = f"{side.rate / side.utilisation:.3g} requests/s"
            found.append(f"overloaded: {side.num_engines} engines of the {name} pool take {most}")
    if not found and slo is not None and not slo.is_met(pools.ttft_s, pools.tpot_s):
        found.append(f"the mean request does not keep {slo.to_text()}")
    return found


def to_dict(plan: Plan) -> dict[str, Any]:
    config, table, pools = plan.config, plan.memory, plan.pools
    states = {"alone": plan.alone, "at_rate": plan.at_rate, "within_slo": plan.within_slo, "at_most": plan.saturated}
    return {
        "model": asdict(config.shape),
        "hardware": asdict(config.hardware),
        "memory_per_gpu": asdict(table)
        | {"pool_bytes": table.pool_bytes, "block_bytes": table.block_bytes, "num_blocks": table.num_blocks},
        "kv_bytes_per_token": config.shape.kv_bytes_per_token,
        "fits": {"context_limit": asdict(plan.at_limit), "mean": asdict(plan.at_mean)},
        "max_requests": plan.max_requests,
        "is_measured": False,
        "times": {name: None if state is None else asdict(state) for name, state in states.items()},
        "pools": None if pools is None else _pools_to_dict(pools),
        "limited_by": plan.limited_by,
        "utilisation": plan.utilisation,
        "ridge_batch": plan.cost.ridge_batch,
        "assumptions": asdict(config.assumptions),
        "warnings": warnings_of(plan),
    }


def _pools_to_dict(pools: PoolsPlan) -> dict[str, Any]:
    def finite(value: float | int | None) -> float | int | None:
        return value if value is not None and math.isfinite(value) else None

    sizes = ("num_prefill", "num_decode", "num_gpus")
    speeds = ("prefills_per_s", "decodes_per_s", "transfer_s", "ttft_s", "tpot_s")
    return {name: finite(getattr(pools, name)) for name in (*sizes, *speeds)}
